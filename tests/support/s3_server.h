/* A real S3 store (Ceph's object gateway) on loopback for a test program: it lives as long as the
 * process that started it at most. Starting takes seconds, so a Criterion program starts one for
 * all its tests (S3_SERVER_STARTS), each of which takes a prefix of its own. */
#ifndef FUNCPIPE_TESTS_S3_SERVER_H
#define FUNCPIPE_TESTS_S3_SERVER_H

#include <stddef.h>
#include <sys/types.h>

#include "storage/relay.h"

#define S3_SERVER_BUCKET "funcpipe-tests"
#define S3_SERVER_SECRET "canary-5e3c-in-the-mine"

/* Another kind than Ceph's gateway, before it is started: OpenStack Swift, which takes no
 * conditional puts. */
void s3_server_is_swift(void);

/* Start the store of this program, make its bucket, and tell the processes that are started from
 * here by the environment. 0, or an error that says why. */
int s3_server_start(void);
void s3_server_stop(void); /* nothing to stop is fine */
/* SIGKILL the gateway; another one comes, with the same objects. Ceph's only. */
int s3_server_restart(void);

/* Its port; it is started when neither this process nor one above has done so. Negative: an error.
 */
int s3_server_port(void);
int s3_server_tls_port(void);      /* the same store over TLS, once s3_server_port was fine */
const char *s3_server_trust(void); /* the certificate to trust there */
/* An absolute path of AWS's form with the right credentials. Valid for ever. */
const char *s3_server_credentials(void);
/* "s3://BUCKET/PREFIX?endpoint=...&credentials_file=...": `port` 0 for the store's own. */
void s3_server_url(const char *prefix, int port, char *out_url, size_t url_bytes);
/* A prefix that no other test has. */
void s3_server_prefix(char *out_prefix, size_t prefix_bytes);

/* For a Criterion program, on lines of their own: one store for all its tests. */
#define S3_SERVER_STARTS                                                                           \
    ReportHook(PRE_ALL)(struct criterion_test_set * tests) {                                       \
        (void)tests;                                                                               \
        if (s3_server_start() < 0)                                                                 \
            fprintf(stderr, "no S3 store: %s\n", err_text());                                      \
    }
#define S3_SERVER_STOPS                                                                            \
    ReportHook(POST_ALL)(struct criterion_global_stats * stats) {                                  \
        (void)stats;                                                                               \
        s3_server_stop();                                                                          \
    }

#endif
