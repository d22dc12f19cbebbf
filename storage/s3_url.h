/* The URL of an S3 relay, taken apart:
 *
 *     s3://BUCKET[/PREFIX][?NAME=VALUE&...]
 *
 *     endpoint=http[s]://HOST[:PORT]   a store other than AWS
 *     region=NAME            default: AWS_REGION, AWS_DEFAULT_REGION, the profile's; with an
 *                            endpoint us-east-1
 *     style=path|virtual     BUCKET in the path or in front of HOST; default: path with an endpoint
 *                            or for a BUCKET with a '.', else virtual
 *     credentials_file=PATH  instead of those of s3_credentials.h (all PATHs are absolute)
 *     profile=NAME           its section; default: AWS_PROFILE, "default"
 *     ca=PATH                whom to trust instead of the system's certificates
 *     timeout=DURATION       the longest silence of the store in one request ("10s"; 1s to 10m)
 *     announce=URL           redis:// or rediss://: objects are announced there
 *                            (storage/relay_announced.h); its '&' is written %26, its '%' %25
 *
 * BUCKET, PREFIX and values may be percent-encoded. There is no place for a secret in it. Errors
 * name the part that is wrong. */
#ifndef FUNCPIPE_STORAGE_S3_URL_H
#define FUNCPIPE_STORAGE_S3_URL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    S3_BUCKET_BYTES = 64,
    S3_PREFIX_BYTES = 256,
    S3_HOST_BYTES = 256,
    S3_REGION_BYTES = 64,
    S3_PROFILE_BYTES = 128,
    S3_FILE_BYTES = 1024,
    S3_ANNOUNCE_BYTES = 1024
};

typedef struct S3Url {
    bool tls, virtual_style;
    unsigned given; /* parameters, a bit each */
    char bucket[S3_BUCKET_BYTES];
    char prefix[S3_PREFIX_BYTES];     /* of all names: "" or it ends with '/' */
    char host[S3_HOST_BYTES];         /* as the header Host has it; "" until the region is known */
    char region[S3_REGION_BYTES];     /* "" not given */
    char profile[S3_PROFILE_BYTES];   /* "" not given */
    char credentials[S3_FILE_BYTES];  /* "" not given */
    char ca[S3_FILE_BYTES];           /* "" not given */
    char announce[S3_ANNOUNCE_BYTES]; /* "" not given; whoever opens the relay sees to it */
    int64_t timeout_ms;
} S3Url;

/* `place`: what follows "s3://". Reads neither files nor the environment. ERR_ARGUMENT. */
int s3_url_parse(const char *place, S3Url *out_url);
/* A region's name (letters, digits, '-')? ERR_ARGUMENT says whose it is (`what`). */
int s3_url_check_region(const char *what, const char *region);
/* Set the region unless there is one, and the host that follows from it. */
void s3_url_settle(S3Url *url, const char *region);

#endif
