/* A whole job in one process: worker threads over the memory relay, and a conductor that is as
 * small as it can be: it restarts the killed, commits saves, drops what no save needs, and records
 * each step's loss and norm. For equivalence and kill tests. */
#ifndef FUNCPIPE_TESTS_SUPPORT_SIM_H
#define FUNCPIPE_TESTS_SUPPORT_SIM_H

#include "core/order.h"
#include "core/program.h"
#include "core/report.h"
#include "storage/relay_faulty.h"
#include "tests/support/device_deferred.h"

enum { SIM_MAX_STEPS = 256, SIM_MAX_WORKERS = 32, SIM_MAX_EVALS = 64, SIM_MAX_HANDLES = 12 };

typedef struct SimJob {
    Order order; /* template: stage, replica, programs are filled in by sim_run */
    char schedule[32];
    int32_t warmup, hoist;
    int64_t wait_ms; /* deadline for everything */
    /* (n_stages) what each stage computes in a training step ("F0 F1 I0 I1 W0 W1"), instead of the
     * schedule's; a stage with replicas cannot have that. NULL: the schedule's. Borrowed. */
    const char *const *compute;
    DeferredSetup *device; /* NULL: the CPU's. Borrowed */
} SimJob;

/* Small models on generated data: "mlp", "cnn", "tiny_gpt". Sets defaults: 24 samples, batch 8,
 * micro-batches of 2, 6 steps, sgd with momentum, save every 2 steps, one stage. */
int sim_job_init(SimJob *job, const char *model);
/* The same around a model of the caller's (taken over), or its JSON text (core/model.h). */
int sim_job_init_model(SimJob *job, Model *take_model, bool tokens, int64_t classes);
int sim_job_init_text(SimJob *job, const char *model, bool tokens, int64_t classes);
void sim_job_done(SimJob *job);
int sim_job_copy(const SimJob *job, SimJob *out_job);
/* Cut into n stages of about equal numbers of layers; all replicas 1, recompute off. */
int sim_job_stages(SimJob *job, int32_t n_stages);
int sim_job_cut(SimJob *job, const int32_t *ends, int32_t n_stages);
void sim_job_micro(SimJob *job, int64_t batch, int32_t micro_rows);
void sim_job_samples(SimJob *job, int64_t samples); /* of the training data */
void sim_job_steps(SimJob *job, int64_t n_steps, int64_t save_every);
/* Evaluate `samples` after every n steps. */
void sim_job_eval(SimJob *job, int64_t samples, int64_t every);
/* Go on from the checkpoint of `step` that another run left in its store. */
int sim_job_resume(SimJob *job, const char *store, int64_t step);

typedef struct SimKill {
    int32_t stage, replica;
    int64_t attempt, step; /* which attempt, in which step */
    int32_t instr;         /* index in that worker's program (train) */
    bool eval;             /* in the evaluation program; step = evaluation batch */
} SimKill;

/* A worker's relay handles, in opening order. */
enum {
    SIM_HANDLE_COMPUTE,
    SIM_HANDLE_FETCH,
    SIM_HANDLE_PUBLISH,
    SIM_HANDLE_PULSE,
    SIM_HANDLE_SAVE,
    SIM_HANDLE_REDUCE /* and further ones: up, up, down, ...; only where gradients are summed */
};

typedef struct SimFault {
    int32_t stage, replica;
    int64_t attempt;
    int32_t handle; /* which of the worker's relay handles, in opening order */
    RelayFaultRule rule;
} SimFault;

typedef struct SimFaults {
    const SimKill *kills;
    int32_t n_kills;
    const SimFault *faults;
    int32_t n_faults;
    /* Called with a handle before the workers start (to seed the relay with stale objects). */
    int (*seed)(Relay *relay, const SimJob *job);
    RelayMemStore *store; /* a relay that several jobs use; NULL: one of the run's own */
    bool keep;            /* drop nothing, not even at the end */
    /* A control note that lasts control_ms, written while the leader's first attempt is in
     * control_step; control_ms 0: none. */
    Control control;
    int64_t control_step, control_ms;
} SimFaults;

/* An instruction on a micro-batch that a worker began. */
typedef struct SimUse {
    int32_t worker, instr; /* which worker; index in its program */
    int64_t attempt, step;
    bool eval;
} SimUse;

typedef struct SimResult {
    int32_t n_params;
    int64_t *sizes; /* (n_params) elements */
    float **params; /* (n_params) final values by parameter id, statistics included */
    double loss[SIM_MAX_STEPS], norm[SIM_MAX_STEPS];
    int64_t valid[SIM_MAX_STEPS], correct[SIM_MAX_STEPS], skipped[SIM_MAX_STEPS];
    int32_t n_steps; /* entries of the above, from first_step on */
    bool stopped;    /* the leader decided that the last of them ends the job */
    int32_t n_saves; /* checkpoints committed */
    double eval_loss[SIM_MAX_EVALS], eval_accuracy[SIM_MAX_EVALS];
    int32_t n_evals;
    int32_t n_restarts;
    int64_t n_left; /* objects left in the relay after every step's were dropped */
    int64_t operations[SIM_MAX_WORKERS][SIM_MAX_HANDLES]; /* of a worker's handle, attempt 1 */
    SimUse *uses;
    int32_t n_uses, cap_uses;
    char store[256]; /* the store directory; removed by sim_result_done */
    char last_checkpoint[512];
} SimResult;

/* Run the job to its end. faults may be NULL. The error of a worker that may not be restarted ends
 * the run. The result is to be done with in either case. */
int sim_run(const SimJob *job, const SimFaults *faults, SimResult *out_result);
void sim_result_done(SimResult *result);
/* The parameters of a checkpoint, as a result without anything else. */
int sim_read_checkpoint(const Model *model, const char *directory, SimResult *out_result);
/* Names the first difference in `why`; returns 0 when bit-equal (losses, norms, counts and
 * evaluations included when with_losses), -1 else. */
int sim_same(const SimResult *a, const SimResult *b, bool with_losses, char *why, size_t why_bytes);
/* Largest difference relative to the tensor's largest magnitude. */
double sim_difference(const SimResult *a, const SimResult *b);
/* Euclidean length of the difference of all parameters, relative to that of all parameters. */
double sim_model_difference(const SimResult *a, const SimResult *b);
/* Largest relative difference of the steps' losses (and evaluations'). */
double sim_loss_difference(const SimResult *a, const SimResult *b);
/* Each (step, micro-batch, direction) was used exactly once in the history that counts: no attempt
 * used one twice, and every step has, per worker, an attempt that used all. -1: why says what. */
int sim_check_history(const SimJob *job, const SimResult *result, char *why, size_t why_bytes);
/* The programs of one worker, as sim_run gives them. */
int sim_programs(const SimJob *job, int32_t stage, int32_t replica, Program *out_train,
                 Program *out_eval);

#endif
