/* Objects that are not what their reader expects, each in another way. */
#ifndef FUNCPIPE_TESTS_SUPPORT_DAMAGE_H
#define FUNCPIPE_TESTS_SUPPORT_DAMAGE_H

#include "storage/blob.h"

enum { DAMAGED_BYTES = 8192, DAMAGED_TENSORS = 4 };
enum {
    DAMAGE_NONE = 0,
    DAMAGE_GARBAGE = 2,
    DAMAGE_CUT = 6,
    DAMAGE_FLIP = 12,
    DAMAGE_DTYPE = 14,
    N_DAMAGES = 18
};

typedef struct Damaged {
    unsigned char bytes[DAMAGED_BYTES];
    size_t n;
} Damaged;

const char *damage_name(int i);
const char *damage_reason(int i); /* words of what a reader must say; NULL: nothing is wrong */
/* A blob of these tensors (n of them, the first with two dims or more), damaged in way i. */
void damage_make(int i, const char *key, const BlobTensor *tensors, int n, Damaged *out);

#endif
