/* Doctor: what a relay is like for a job that is to run over it: facts its implementation tells,
 * and what two handles measure. Every wait has a deadline; the whole takes some seconds, at most
 * about a minute where each thing fails slowly. What it puts lies under a generation of a job of
 * its own
 * ("doctor.PID-NUMBER") and is dropped at the end; should it be killed, gc finds it. */
#ifndef FUNCPIPE_COORDINATOR_DOCTOR_H
#define FUNCPIPE_COORDINATOR_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

enum { DOCTOR_NAME_BYTES = 32, DOCTOR_TEXT_BYTES = 320 };

typedef struct DoctorFact {
    char name[DOCTOR_NAME_BYTES], value[DOCTOR_TEXT_BYTES];
    char problem[DOCTOR_TEXT_BYTES]; /* what is wrong and what to do; "": it is fine */
} DoctorFact;

typedef struct DoctorTimes { /* of one operation, in microseconds; -1: not measured */
    int64_t median_us, p99_us;
} DoctorTimes;

typedef struct DoctorReport {
    DoctorFact *facts;
    int n, capacity;
    int n_problems;
    DoctorTimes put, get, drop; /* of small objects */
    DoctorTimes wake;           /* from the beginning of a put until a waiting get has it */
    bool pushes;
    double put_bytes_per_s, get_bytes_per_s; /* of the longest object; < 0: not measured */
    int64_t longest_bytes;                   /* that was put and came back equal */
} DoctorReport;

/* ERR_UNREACHABLE, ERR_AUTH and ERR_ARGUMENT as relay_open; what else is wrong with the relay is a
 * problem of the report, which is to be ended in any case. */
int doctor_run(const char *url, DoctorReport *out_report);
void doctor_done(DoctorReport *report);

#endif
