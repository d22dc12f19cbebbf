/* The loops of an exchange: contributions are added up, and rounded for a 16-bit wire. */
#ifndef FUNCPIPE_WORKER_ADDING_H
#define FUNCPIPE_WORKER_ADDING_H

#include <stdbool.h>
#include <stdint.h>

/* sum += from (n floats, apart) */
void adding_floats(float *restrict sum, const float *restrict from, int64_t n);
/* The same of bf16; `first`: sum = from. */
void adding_halves(float *restrict sum, const uint16_t *restrict from, int64_t n, bool first);
/* to = exact + residual, rounded to bf16; residual = what that took away (nothing of what is not
 * finite). */
void adding_round(uint16_t *restrict to, const float *restrict exact, float *restrict residual,
                  int64_t n);

#endif
