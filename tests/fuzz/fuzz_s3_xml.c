/* Any bytes: s3_xml_read says yes or no, visits only paths and texts within its bounds, and what it
 * accepts it accepts again with its texts escaped. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "storage/s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int truth) {
    if (!truth)
        abort();
}

static int visit(void *arg, const char *path, const char *text) {
    Buf *copy = arg;
    require(path[0] != '\0' && strlen(path) < S3_XML_PATH_BYTES);
    require(strlen(text) < S3_XML_TEXT_BYTES);
    require(buf_text(copy, "<t>") >= 0);
    require(s3_xml_escape(copy, text) >= 0);
    require(buf_text(copy, "</t>") >= 0);
    return 0;
}

static int nothing(void *arg, const char *path, const char *text) {
    (void)arg;
    (void)path;
    (void)text;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Buf copy;
    buf_init(&copy, 0);
    require(buf_text(&copy, "<r>") >= 0);
    int rc = s3_xml_read((Slice){data, bytes}, visit, &copy);
    require(rc == 0 || (rc == ERR_FORMAT && err_text()[0] != '\0'));
    require(buf_text(&copy, "</r>") >= 0);
    require(s3_xml_read((Slice){copy.data, copy.bytes}, nothing, NULL) == 0);
    buf_done(&copy);
    return 0;
}
