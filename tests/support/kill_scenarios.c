#include "tests/support/kill_scenarios.h"

#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "tests/support/sim_check.h"

#define KILL_SCENARIO_ROW(name) {#name, kill_##name},
static const Scenario rows[] = {KILL_SCENARIOS(KILL_SCENARIO_ROW)};
#undef KILL_SCENARIO_ROW
const ScenarioTable kill_scenarios = {"kill", rows, sizeof rows / sizeof rows[0]};

enum { MAX_KILLS = 64, N_STEPS = 5 };

/* A job, its undisturbed run, and how many instructions each worker has. */
typedef struct KillRig {
    SimJob job;
    SimResult undisturbed;
    int32_t n_workers;
    struct {
        int32_t stage, replica, n_train, n_eval;
    } workers[SIM_MAX_WORKERS];
} KillRig;

static int rig_init(KillRig *rig, const char *model, int32_t n_stages, char *why,
                    size_t why_bytes) {
    memset(rig, 0, sizeof *rig);
    EXPECT(sim_job_init(&rig->job, model) == 0, "%s", err_text());
    EXPECT(sim_job_stages(&rig->job, n_stages) == 0, "%s", err_text());
    sim_job_steps(&rig->job, N_STEPS, 2);
    sim_job_samples(&rig->job, 19); /* step 2 has micro-batches of 2, 1, 0 and 0 rows */
    sim_job_eval(&rig->job, 11, 3);
    return 0;
}

/* The plan is set: run it undisturbed. */
static int rig_run(KillRig *rig, char *why, size_t why_bytes) {
    const PlanSpec *plan = &rig->job.order.plan;
    TRY(sim_check_run(&rig->job, NULL, &rig->undisturbed, why, why_bytes));
    for (int32_t s = 0; s < plan->n_stages; s++) {
        for (int32_t r = 0; r < plan->replicas[s]; r++, rig->n_workers++) {
            Program train, eval;
            EXPECT(sim_programs(&rig->job, s, r, &train, &eval) == 0, "%s", err_text());
            rig->workers[rig->n_workers].stage = s;
            rig->workers[rig->n_workers].replica = r;
            rig->workers[rig->n_workers].n_train = train.n_instrs;
            rig->workers[rig->n_workers].n_eval = eval.n_instrs;
            program_done(&train);
            program_done(&eval);
        }
    }
    return 0;
}

static void rig_done(KillRig *rig) {
    sim_result_done(&rig->undisturbed);
    sim_job_done(&rig->job);
}

static SimKill rig_kill(const KillRig *rig, int32_t worker, int64_t attempt, int64_t step,
                        int32_t instr) {
    return (SimKill){.stage = rig->workers[worker].stage,
                     .replica = rig->workers[worker].replica,
                     .attempt = attempt,
                     .step = step,
                     .instr = instr};
}

/* Disturbed by these kills the job must give the same. n_expected < 0: at least one must hit. */
static int check_kills(const KillRig *rig, const SimKill *kills, int32_t n_kills,
                       int32_t n_expected, char *why, size_t why_bytes) {
    const SimFaults faults = {.kills = kills, .n_kills = n_kills};
    char what[256] = "";
    int32_t n_restarts = 0;
    for (int32_t k = 0; k < n_kills && strlen(what) + 64 < sizeof what; k++) {
        size_t used = strlen(what);
        snprintf(what + used, sizeof what - used, "%d.%d attempt %d step %d%s instr %d; ",
                 kills[k].stage, kills[k].replica, (int)kills[k].attempt, (int)kills[k].step,
                 kills[k].eval ? " (evaluation)" : "", kills[k].instr);
    }
    TRY(sim_check_same(&rig->job, &faults, &rig->undisturbed, what, &n_restarts, why, why_bytes));
    EXPECT(n_expected < 0 ? n_restarts > 0 : n_restarts == n_expected,
           "%s: %d restarts, expected %d", what, n_restarts, n_expected);
    return 0;
}

/* Each worker at each instruction of a step (of all steps in the long form); the rig is done. */
static int kill_each(KillRig *rig, int64_t step, bool eval, char *why, size_t why_bytes) {
    TRY(rig_run(rig, why, why_bytes));
    const int64_t first = sim_long() && !eval ? 0 : step;
    const int64_t end = sim_long() && !eval ? N_STEPS : step + 1;
    for (int32_t w = 0; w < rig->n_workers; w++) {
        const int32_t n = eval ? rig->workers[w].n_eval : rig->workers[w].n_train;
        for (int32_t i = 0; i < n * (int32_t)(end - first); i += sim_stride()) {
            SimKill kill = rig_kill(rig, w, 1, first + i / n, i % n);
            kill.eval = eval;
            TRY(check_kills(rig, &kill, 1, 1, why, why_bytes));
        }
    }
    rig_done(rig);
    return 0;
}

int kill_mlp_each_worker_at_each_instruction(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "mlp", 3, why, why_bytes));
    return kill_each(&rig, 3, false, why, why_bytes);
}

int kill_cnn_each_worker_at_each_instruction(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "cnn", 2, why, why_bytes));
    rig.job.order.plan.recompute[1] = true;
    return kill_each(&rig, 2, false, why, why_bytes);
}

int kill_tiny_gpt_each_worker_at_each_instruction(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "tiny_gpt", 3, why, why_bytes));
    rig.job.hoist = 1;
    return kill_each(&rig, 3, false, why, why_bytes);
}

int kill_gpipe_with_recompute_at_each_instruction(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "mlp", 3, why, why_bytes));
    EXPECT(text_copy(rig.job.schedule, sizeof rig.job.schedule, "gpipe") == 0, "%s", err_text());
    memset(rig.job.order.plan.recompute, true, 3 * sizeof(bool));
    return kill_each(&rig, 2, false, why, why_bytes);
}

int kill_replicas_at_each_instruction(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "tiny_gpt", 2, why, why_bytes));
    rig.job.order.plan.replicas[0] = rig.job.order.plan.replicas[1] = 2;
    return kill_each(&rig, 3, false, why, why_bytes);
}

int kill_each_instruction_of_an_evaluation(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "cnn", 3, why, why_bytes));
    return kill_each(&rig, 1, true, why, why_bytes); /* its second batch, which is not full */
}

int kill_replicas_at_each_instruction_of_an_evaluation(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "mlp", 2, why, why_bytes));
    rig.job.order.plan.replicas[0] = 3;
    rig.job.order.plan.replicas[1] = 2;
    return kill_each(&rig, 0, true, why, why_bytes);
}

/* First, last and one of the middle instructions of every step. */
int kill_at_every_step(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "mlp", 3, why, why_bytes));
    int32_t n_kills = 0;
    TRY(rig_run(&rig, why, why_bytes));
    for (int32_t w = 0; w < rig.n_workers; w++) {
        for (int64_t step = 0; step < N_STEPS; step++) {
            const int32_t n = rig.workers[w].n_train;
            const int32_t instrs[] = {0, n / 2 + (int32_t)step % 3, n - 1};
            for (int i = 0; i < 3; i++) {
                if (n_kills++ % sim_stride() != 0) {
                    continue;
                }
                SimKill kill = rig_kill(&rig, w, 1, step, instrs[i]);
                TRY(check_kills(&rig, &kill, 1, 1, why, why_bytes));
            }
        }
    }
    rig_done(&rig);
    return 0;
}

/* There is none before the end: all starts again from the initial weights. */
int kill_before_the_first_checkpoint(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "tiny_gpt", 3, why, why_bytes));
    rig.job.order.save_every = 0;
    TRY(rig_run(&rig, why, why_bytes));
    for (int32_t w = 0; w < rig.n_workers; w++) {
        for (int32_t i = 0; i < rig.workers[w].n_train; i += 3 * sim_stride()) {
            SimKill kill = rig_kill(&rig, w, 1, 4, i);
            TRY(check_kills(&rig, &kill, 1, 1, why, why_bytes));
        }
    }
    rig_done(&rig);
    return 0;
}

int kill_all_workers_at_once(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "tiny_gpt", 4, why, why_bytes));
    TRY(rig_run(&rig, why, why_bytes));
    uint64_t state = 3;
    for (int i = 0; i < sim_times(20); i++) {
        SimKill kills[SIM_MAX_WORKERS];
        for (int32_t w = 0; w < rig.n_workers; w++) {
            const uint32_t n = (uint32_t)rig.workers[w].n_train;
            kills[w] = rig_kill(&rig, w, 1, i % N_STEPS, (int32_t)sim_draw(&state, n));
        }
        TRY(check_kills(&rig, kills, rig.n_workers, rig.n_workers, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

/* Every two workers in one step. */
int kill_several_workers_at_once(char *why, size_t why_bytes) {
    KillRig rig;
    uint64_t state = 9;
    TRY(rig_init(&rig, "cnn", 3, why, why_bytes));
    rig.job.order.plan.replicas[1] = 2;
    TRY(rig_run(&rig, why, why_bytes));
    for (int i = 0; i < sim_times(24); i++) {
        const int32_t a = i % rig.n_workers, b = (a + 1 + i / rig.n_workers % 3) % rig.n_workers;
        const uint32_t n_a = (uint32_t)rig.workers[a].n_train,
                       n_b = (uint32_t)rig.workers[b].n_train;
        const SimKill kills[] = {rig_kill(&rig, a, 1, i % N_STEPS, (int32_t)sim_draw(&state, n_a)),
                                 rig_kill(&rig, b, 1, i % N_STEPS, (int32_t)sim_draw(&state, n_b))};
        TRY(check_kills(&rig, kills, 2, 2, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

int kill_workers_at_different_steps(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "mlp", 4, why, why_bytes));
    TRY(rig_run(&rig, why, why_bytes));
    for (int64_t i = 0; i < N_STEPS * N_STEPS; i += sim_stride()) {
        const SimKill kills[] = {rig_kill(&rig, 0, 1, i % N_STEPS, (int32_t)i % 7),
                                 rig_kill(&rig, 2, 1, i / N_STEPS, (int32_t)i % 11),
                                 rig_kill(&rig, 3, 1, (i + 2) % N_STEPS, (int32_t)i % 5)};
        TRY(check_kills(&rig, kills, 3, 3, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

/* Anyone, anywhere, in any attempt; some kills never come to pass. */
static SimKill draw_kill(const KillRig *rig, int64_t attempt, uint64_t *state) {
    const int32_t w = (int32_t)sim_draw(state, (uint32_t)rig->n_workers);
    const bool eval = attempt > 1 && sim_draw(state, 6) == 0 && rig->workers[w].n_eval > 0;
    const int32_t n = eval ? rig->workers[w].n_eval : rig->workers[w].n_train;
    const int64_t step = sim_draw(state, eval ? 2 : N_STEPS);
    SimKill kill = rig_kill(rig, w, attempt, step, (int32_t)sim_draw(state, (uint32_t)n));
    kill.eval = eval;
    return kill;
}

int kill_storm(char *why, size_t why_bytes) {
    KillRig rig;
    uint64_t state = 17;
    TRY(rig_init(&rig, "tiny_gpt", 3, why, why_bytes));
    rig.job.order.plan.replicas[1] = 2;
    rig.job.hoist = 2;
    TRY(rig_run(&rig, why, why_bytes));
    for (int i = 0; i < sim_times(15); i++) {
        SimKill kills[MAX_KILLS];
        for (int32_t k = 0; k < MAX_KILLS; k++) {
            kills[k] = draw_kill(&rig, 1 + k / 8, &state);
        }
        TRY(check_kills(&rig, kills, MAX_KILLS, -1, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

/* The same worker, at the same instruction or a later one, in attempts 1, 2 and 3. */
int kill_again_in_the_next_attempts(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "mlp", 3, why, why_bytes));
    TRY(rig_run(&rig, why, why_bytes));
    for (int32_t w = 0; w < rig.n_workers; w++) {
        const int32_t n = rig.workers[w].n_train;
        for (int32_t i = 0; i < n; i += sim_long() ? 1 : 2 * sim_stride()) {
            const SimKill same[] = {rig_kill(&rig, w, 1, 3, i), rig_kill(&rig, w, 2, 3, i),
                                    rig_kill(&rig, w, 3, 3, i)};
            const SimKill later[] = {rig_kill(&rig, w, 1, 3, i), rig_kill(&rig, w, 2, 2, n - 1 - i),
                                     rig_kill(&rig, w, 3, 4, i)};
            TRY(check_kills(&rig, same, 3, 3, why, why_bytes));
            TRY(check_kills(&rig, later, 3, 3, why, why_bytes));
        }
    }
    rig_done(&rig);
    return 0;
}

/* Update state with a count, gradients shared by two stages, all scaled by the norm. */
int kill_adamw_with_clipping_and_ties(char *why, size_t why_bytes) {
    KillRig rig;
    TRY(rig_init(&rig, "tiny_gpt", 2, why, why_bytes));
    UpdateSpec *update = &rig.job.order.update;
    update->kind = UPDATE_ADAMW;
    update->lr = 0.01;
    update->beta1 = 0.9;
    update->beta2 = 0.99;
    update->eps = 1e-8;
    update->clip_norm = 0.5;
    update->schedule = LR_COSINE;
    update->warmup_steps = 2;
    return kill_each(&rig, 3, false, why, why_bytes);
}

/* What a consumer took before its death is not taken again by the history that counts. */
int kill_restarted_middle_stage_uses_each_micro_batch_once(char *why, size_t why_bytes) {
    KillRig rig;
    SimResult result;
    char words[512] = "";
    TRY(rig_init(&rig, "mlp", 3, why, why_bytes));
    TRY(rig_run(&rig, why, why_bytes));
    const SimKill kill = rig_kill(&rig, 1, 1, 3, rig.workers[1].n_train / 2);
    const SimFaults faults = {.kills = &kill, .n_kills = 1};
    TRY(sim_check_run(&rig.job, &faults, &result, why, why_bytes)); /* checks the history */
    EXPECT(result.n_restarts == 1 && result.n_steps == N_STEPS, "%d restarts, %d losses",
           result.n_restarts, result.n_steps);
    int32_t n_others = 0, n_again = 0; /* uses by those who only waited; the middle's in step 3 */
    for (int32_t u = 0; u < result.n_uses; u++) {
        n_others += result.uses[u].worker != 1 && result.uses[u].attempt > 1;
        n_again += result.uses[u].worker == 1 && result.uses[u].step == 3 &&
                   result.uses[u].attempt == 2 && !result.uses[u].eval;
    }
    EXPECT(n_others == 0, "the others used %d again", n_others);
    EXPECT(n_again == rig.workers[1].n_train - 2, "the restarted one used %d of %d", n_again,
           rig.workers[1].n_train - 2);
    EXPECT(sim_same(&rig.undisturbed, &result, true, words, sizeof words) == 0, "%s", words);
    sim_result_done(&result);
    rig_done(&rig);
    return 0;
}

/* ---- decisions ---- */

enum { CONTROL_STEP = 10 };

/* So many that the run goes on behind the note. */
static int32_t long_steps(void) {
    return sim_stride() > 1 ? 40 : 120;
}

/* Many short steps, saved each, and a control note that is gone soon; the leader's heart beats
 * quickly enough to read it. */
static int rig_init_control(KillRig *rig, char *why, size_t why_bytes) {
    TRY(rig_init(rig, "mlp", 3, why, why_bytes));
    rig->job.order.plan.replicas[2] = 2;
    rig->job.order.heartbeat_ms = 2;
    sim_job_steps(&rig->job, long_steps(), 1);
    return rig_run(rig, why, why_bytes);
}

/* The run ended after result->n_steps steps, with the weights the undisturbed one had there. */
static int check_stopped(const KillRig *rig, const SimResult *result, char *why, size_t why_bytes) {
    SimResult expected = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%d", rig->undisturbed.store, result->n_steps);
    EXPECT(sim_read_checkpoint(&rig->job.order.model, path, &expected) == 0, "%s", err_text());
    for (int32_t s = 0; s < result->n_steps; s++) {
        EXPECT(result->loss[s] == rig->undisturbed.loss[s], "step %d: loss %.17g, expected %.17g",
               s, result->loss[s], rig->undisturbed.loss[s]);
    }
    if (sim_same(&expected, result, false, why, why_bytes) < 0) {
        return -1;
    }
    sim_result_done(&expected);
    return 0;
}

/* The leader dies behind its reduction, so with its decision out, in the step in which it sees the
 * note or one near it, and again in its next attempt; another one dies about there. */
static void control_kills(const KillRig *rig, int i, uint64_t *state, SimKill kills[3]) {
    const int64_t step = CONTROL_STEP + 1 + i % 2;
    const int32_t other = 1 + i / 2 % (rig->n_workers - 1);
    const uint32_t n = (uint32_t)rig->workers[other].n_train;
    kills[0] = rig_kill(rig, 0, 1, step, rig->workers[0].n_train - 1);
    kills[1] = rig_kill(rig, 0, 2, step - i / 4 % 2, rig->workers[0].n_train - 1);
    kills[2] = rig_kill(rig, other, 1, step - i / 8 % 2, (int32_t)sim_draw(state, n));
}

/* Its next attempts keep to what it said: all workers end with the same step. */
int kill_leader_that_decided_to_stop(char *why, size_t why_bytes) {
    KillRig rig;
    uint64_t state = 31;
    int32_t n_stopped = 0;
    TRY(rig_init_control(&rig, why, why_bytes));
    for (int i = 0; i < sim_times(32) || (n_stopped == 0 && i < 32); i++) {
        SimKill kills[3];
        SimResult result;
        control_kills(&rig, i, &state, kills);
        const SimFaults faults = {.kills = kills,
                                  .n_kills = 3,
                                  .control = {.stop = true},
                                  .control_step = CONTROL_STEP,
                                  .control_ms = 5};
        rig.job.order.save_every = 1 + i % 7;
        TRY(sim_check_run(&rig.job, &faults, &result, why, why_bytes));
        n_stopped += result.stopped && result.n_restarts > 0;
        TRY(check_stopped(&rig, &result, why, why_bytes));
        sim_result_done(&result);
    }
    EXPECT(n_stopped > 0, "no run was stopped and had a restart");
    rig_done(&rig);
    return 0;
}

/* The same with a save that is not due. */
int kill_leader_that_decided_to_save(char *why, size_t why_bytes) {
    KillRig rig;
    uint64_t state = 37;
    int32_t n_saved = 0;
    TRY(rig_init_control(&rig, why, why_bytes));
    rig.job.order.save_every = 0;
    for (int i = 0; i < sim_times(16) || (n_saved == 0 && i < 16); i++) {
        SimKill kills[3];
        SimResult result;
        control_kills(&rig, i, &state, kills);
        const SimFaults faults = {.kills = kills,
                                  .n_kills = 3,
                                  .control = {.save = true},
                                  .control_step = CONTROL_STEP,
                                  .control_ms = 5};
        TRY(sim_check_run(&rig.job, &faults, &result, why, why_bytes));
        EXPECT(result.n_steps == long_steps() && !result.stopped, "%d steps", result.n_steps);
        TRY(check_stopped(&rig, &result, why, why_bytes));
        n_saved += result.n_saves > 1 && result.n_restarts > 0;
        sim_result_done(&result);
    }
    EXPECT(n_saved > 0, "no run was saved before its end and had a restart");
    rig_done(&rig);
    return 0;
}
