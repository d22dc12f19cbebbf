/* Who asks an S3 store: an access key, found where AWS's own programs look for it.
 *
 *     1. the file credentials_file= of the URL, section [profile= or AWS_PROFILE or default]
 *     2. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (unless the URL has profile=)
 *     3. AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, the same section
 *     4. AWS_CONFIG_FILE or ~/.aws/config, section [profile NAME] or [default]
 *
 * The region comes from there too, when neither the URL nor AWS_REGION nor AWS_DEFAULT_REGION has
 * it. Files are AWS's: [SECTION] lines, NAME = VALUE lines (aws_access_key_id,
 * aws_secret_access_key, aws_session_token, region), '#' and ';' comments. */
#ifndef FUNCPIPE_STORAGE_S3_CREDENTIALS_H
#define FUNCPIPE_STORAGE_S3_CREDENTIALS_H

#include "storage/s3_url.h"

typedef struct S3Credentials {
    char key_id[160], secret[256];
    char token[8192]; /* "": no temporary ones */
} S3Credentials;

/* Find them and settle the URL's region and host. ERR_AUTH says where they were looked for, or
 * which half is missing; ERR_ARGUMENT: no region; or what reading a file gives. No value is ever
 * quoted. */
int s3_credentials_find(S3Url *url, S3Credentials *out_credentials);

#endif
