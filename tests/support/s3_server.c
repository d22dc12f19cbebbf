#include "tests/support/s3_server.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/file.h"
#include "storage/s3_client.h"
#include "tests/support/loopback.h"
#include "tests/support/redis_server.h"
#include "tests/support/temp.h"

enum { START_TRIES = 3, READY_MS = 60000 };

#define VARIABLE "FUNCPIPE_TEST_S3" /* "PORT TLS_PORT FOLDER" of the program's store */
#define ACCESS_KEY "AKFUNCPIPETESTS"
#define SWIFT_USER "tests:funcpipe" /* an access key to its S3 interface */

static pid_t script;
static int store_port, store_tls_port;
static bool is_swift;
static char folder[64];

void s3_server_is_swift(void) {
    is_swift = true;
}

static int free_port(void) {
    int port = -1;
    int fd = loopback_listen(0, &port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void run_script(int end, pid_t parent) {
    char ports[5][16];
    for (int i = 0; i < 5; i++)
        snprintf(ports[i], sizeof ports[i], "%d",
                 i == 0   ? store_port
                 : i == 1 ? store_tls_port
                          : free_port());
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    dup2(end, 1);
    execl(is_swift ? FUNCPIPE_SOURCE_DIR "/tests/support/swift_server.sh"
                   : FUNCPIPE_SOURCE_DIR "/tests/support/s3_server.sh",
          "store", folder, ports[0], ports[1], ports[2], ports[3], ports[4],
          is_swift ? SWIFT_USER : ACCESS_KEY, S3_SERVER_SECRET, (char *)NULL);
    _exit(127);
}

static void end_script(void) {
    if (script > 0) {
        kill(script, SIGKILL);
        waitpid(script, NULL, 0);
    }
    script = 0;
    /* Its daemons end with it, but not before it: what they write meanwhile goes, too. */
    for (int i = 0; i < 100 && folder[0] && access(folder, F_OK) == 0; i++) {
        temp_remove(folder);
        clock_sleep_until(clock_deadline_ms(10));
    }
}

/* The script's first line: "ready", or why not. */
static int await_ready(int fd) {
    char line[256] = "";
    size_t n = 0;
    while (n + 1 < sizeof line && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    if (strcmp(line, "ready") == 0)
        return 0;
    return err_set(strncmp(line, "there is no", 11) == 0 ? ERR_UNSUPPORTED : ERR_IO,
                   "no S3 store: %s", line[0] ? line : "its script ended");
}

static int start_once(void) {
    int ends[2];
    pid_t parent = getpid();
    store_port = free_port();
    store_tls_port = free_port();
    if (temp_make(folder, sizeof folder, "test") < 0 || pipe(ends) < 0)
        return err_set(ERR_IO, "no folder for an S3 store");
    TRY(redis_server_certificates(folder));
    script = fork();
    if (script == 0)
        run_script(ends[1], parent);
    close(ends[1]);
    int rc = script > 0 ? await_ready(ends[0]) : err_errno(ERR_IO, errno, "starting a script");
    close(ends[0]);
    return rc;
}

static int write_credentials(void) {
    char text[256];
    int n = snprintf(text, sizeof text,
                     "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n",
                     is_swift ? SWIFT_USER : ACCESS_KEY, S3_SERVER_SECRET);
    return file_write(s3_server_credentials(), text, (size_t)n);
}

static int make_bucket(void) {
    char place[512];
    S3Url url;
    S3Client *client = NULL;
    RelayCounters counters = {0};
    atomic_bool interrupted = false;
    int64_t end_ns = clock_deadline_ms(READY_MS);
    S3Limits limits = {end_ns, end_ns, false};
    s3_server_url("", 0, place, sizeof place);
    TRY(s3_url_parse(place + strlen("s3://"), &url));
    TRY(s3_client_open(&url, -1, &interrupted, &counters, &client));
    S3Request request = {.method = "PUT"};
    int rc = s3_client_run(client, &request, 1, &limits);
    s3_client_close(client);
    return rc < 0 || request.answer.status == 200 ? rc : err_set(ERR_IO, "no bucket for tests");
}

int s3_server_start(void) {
    char text[96];
    int rc = ERR_IO;
    for (int i = 0; i < START_TRIES && rc < 0 && rc != ERR_UNSUPPORTED; i++) {
        rc = start_once(); /* a port may be taken meanwhile */
        if (rc >= 0)
            rc = write_credentials();
        if (rc >= 0)
            rc = make_bucket();
        if (rc < 0)
            end_script();
    }
    TRY(rc);
    snprintf(text, sizeof text, "%d %d %s", store_port, store_tls_port, folder);
    return setenv(VARIABLE, text, 1) == 0 ? 0 : err_set(ERR_MEMORY, "a variable");
}

void s3_server_stop(void) {
    if (script > 0)
        end_script();
}

int s3_server_restart(void) {
    char path[96];
    Buf text;
    int64_t pid = 0;
    TRY(s3_server_port());
    snprintf(path, sizeof path, "%s/rgw.pid", folder);
    buf_init(&text, 0);
    int rc = buf_read_file(&text, path, 32);
    if (rc >= 0)
        rc = sscanf(buf_string(&text), "%" SCNd64, &pid) == 1 && kill((pid_t)pid, SIGKILL) == 0
                 ? 0
                 : err_set(ERR_NOT_FOUND, "there is no gateway '%s'", buf_string(&text));
    buf_done(&text);
    return rc;
}

int s3_server_port(void) {
    const char *text = getenv(VARIABLE);
    if (!text) {
        TRY(s3_server_start());
        atexit(s3_server_stop);
    } else if (sscanf(text, "%d %d %63s", &store_port, &store_tls_port, folder) != 3) {
        return err_set(ERR_ARGUMENT, "the variable " VARIABLE " is '%s'", text);
    }
    return store_port;
}

int s3_server_tls_port(void) {
    return store_tls_port;
}

const char *s3_server_trust(void) {
    static char path[96];
    snprintf(path, sizeof path, "%s/ca.crt", folder);
    return path;
}

const char *s3_server_credentials(void) {
    static char path[96];
    snprintf(path, sizeof path, "%s/credentials", folder);
    return path;
}

void s3_server_url(const char *prefix, int port, char *out_url, size_t url_bytes) {
    snprintf(out_url, url_bytes,
             "s3://" S3_SERVER_BUCKET "%s%s?endpoint=http://127.0.0.1:%d&credentials_file=%s",
             prefix[0] ? "/" : "", prefix, port ? port : store_port, s3_server_credentials());
}

void s3_server_prefix(char *out_prefix, size_t prefix_bytes) {
    static atomic_int n_prefixes;
    snprintf(out_prefix, prefix_bytes, "test-%d-%lld-%d", (int)getpid(),
             (long long)clock_now_ns() % 1000000, atomic_fetch_add(&n_prefixes, 1));
}
