/* dump_case JOB.json OUT.safetensors: the initial weights, batches and dropout masks of a parity
 * case (tests/support/parity_case.h), for make_curves.py. */
#include <stdio.h>

#include "core/err.h"
#include "tests/support/parity_case.h"

static int dump(const char *job_path, const char *out_path) {
    SimJob job;
    ParityTensors tensors = {0};
    char hash[17];
    int rc = 0;
    TRY_DONE(parity_job_init(&job, job_path));
    TRY_DONE(parity_tensors_init(&tensors, &job.order));
    TRY_DONE(parity_hash(job_path, &tensors, hash));
    const SafetensorsMeta meta = {"hash", hash};
    TRY_DONE(safetensors_write(out_path, tensors.tensors, tensors.n, &meta, 1, NULL));
done:
    parity_tensors_done(&tensors);
    sim_job_done(&job);
    return rc;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: dump_case JOB.json OUT.safetensors\n");
        return 2;
    }
    if (dump(argv[1], argv[2]) < 0) {
        fprintf(stderr, "dump_case: %s\n", err_text());
        return 1;
    }
    return 0;
}
