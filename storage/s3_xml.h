/* The XML that S3 stores answer with, read strictly: elements with text, within a depth; no
 * document types, so no entities but the five of XML itself and characters by number. Attributes
 * and comments are passed over. */
#ifndef FUNCPIPE_STORAGE_S3_XML_H
#define FUNCPIPE_STORAGE_S3_XML_H

#include "core/buf.h"

enum { S3_XML_DEPTH = 8, S3_XML_PATH_BYTES = 256, S3_XML_TEXT_BYTES = 4096 };

/* An element ends: `path` are the names down to it ("ListBucketResult/Contents/Key"), `text` its
 * text when it has no elements in it, "" else. A negative result ends the reading. */
typedef int (*S3XmlVisit)(void *arg, const char *path, const char *text);

/* Read a whole document. ERR_FORMAT says where it is wrong; what came before was visited. */
int s3_xml_read(Slice document, S3XmlVisit visit, void *arg);
/* Append `text` as the text of an element. */
int s3_xml_escape(Buf *out, const char *text);

#endif
