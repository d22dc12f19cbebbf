/* The stories a job can live through. Each test plays the conductor: it sends events and looks at
 * the actions that follow. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/job.h"
#include "core/report.h"

typedef struct Story {
    Job job;
    JobActions actions; /* of the last event */
    int64_t now_ms;
} Story;

static const int32_t replicas[] = {1, 2};

static JobSetup usual_setup(void) {
    return (JobSetup){.n_stages = 2,
                      .replicas = replicas,
                      .first_step = 0,
                      .end_step = 10,
                      .heartbeat_ms = 1000,
                      .start_timeout_ms = 30000,
                      .silence_ms = 5000,
                      .stop_timeout_ms = 60000,
                      .wait_timeout_ms = 20000,
                      .max_restarts = 2};
}

static void send(Story *story, JobEvent event) {
    event.now_ms = story->now_ms;
    story->actions.n = 0;
    cr_assert_eq(job_step(&story->job, &event, &story->actions), 0, "%s", err_text());
}

static int count(const Story *story, JobActionKind kind) {
    int n = 0;
    for (int32_t i = 0; i < story->actions.n; i++)
        n += story->actions.items[i].kind == kind;
    return n;
}

static const JobAction *action(const Story *story, JobActionKind kind) {
    for (int32_t i = 0; i < story->actions.n; i++) {
        if (story->actions.items[i].kind == kind)
            return &story->actions.items[i];
    }
    cr_assert_fail("no action %d among %d", (int)kind, story->actions.n);
    abort();
}

static void begin(Story *story, const JobSetup *setup) {
    memset(story, 0, sizeof *story);
    story->now_ms = 1000;
    job_init(&story->job);
    send(story, (JobEvent){.kind = JOB_EV_START});
    cr_assert_eq(story->job.state, JOB_PROFILING);
    cr_assert_eq(count(story, JOB_ACT_PROFILE), 1);
    send(story, (JobEvent){.kind = JOB_EV_PROFILED});
    cr_assert_eq(story->job.state, JOB_PLANNING);
    cr_assert_eq(count(story, JOB_ACT_PLAN), 1);
    send(story, (JobEvent){.kind = JOB_EV_PLANNED, .setup = setup});
}

static void begin_usual(Story *story) {
    JobSetup setup = usual_setup();
    begin(story, &setup);
    cr_assert_eq(story->job.state, JOB_RUNNING);
    cr_assert_eq(count(story, JOB_ACT_INVOKE), 3);
    cr_assert_eq(count(story, JOB_ACT_FENCE), 0, "a first attempt has nobody to fence off");
}

static void end(Story *story) {
    job_done(&story->job);
    job_actions_done(&story->actions);
}

static void heartbeat(Story *story, int32_t stage, int32_t replica, int64_t step) {
    const JobWorker *worker = job_worker(&story->job, stage, replica);
    send(story, (JobEvent){.kind = JOB_EV_HEARTBEAT,
                           .stage = stage,
                           .replica = replica,
                           .attempt = worker->attempt,
                           .step = step});
}

static void heartbeats(Story *story, int64_t step) {
    heartbeat(story, 0, 0, step);
    heartbeat(story, 1, 0, step);
    heartbeat(story, 1, 1, step);
}

static void ended(Story *story, int32_t stage, int32_t replica, int code, int64_t step,
                  const char *text) {
    const JobWorker *worker = job_worker(&story->job, stage, replica);
    send(story, (JobEvent){.kind = JOB_EV_EXITED,
                           .stage = stage,
                           .replica = replica,
                           .attempt = worker->attempt,
                           .code = code,
                           .step = step,
                           .text = text});
}

static void step(Story *story, int64_t number, int decision) {
    story->now_ms += 100;
    send(story, (JobEvent){.kind = JOB_EV_STEP,
                           .step = number,
                           .decision = decision,
                           .save_due = (number + 1) % 5 == 0});
}

static void saved(Story *story, int32_t stage, int32_t replica, int64_t at) {
    send(story, (JobEvent){.kind = JOB_EV_SAVED, .stage = stage, .replica = replica, .step = at});
}

static void all_saved(Story *story, int64_t at) {
    saved(story, 0, 0, at);
    saved(story, 1, 1, at);
    cr_assert_eq(count(story, JOB_ACT_COMMIT), 0, "not all have saved");
    saved(story, 1, 0, at);
    cr_assert_eq(action(story, JOB_ACT_COMMIT)->step, at);
}

static void committed(Story *story, int64_t at) {
    send(story, (JobEvent){.kind = JOB_EV_COMMITTED, .step = at});
}

static void run_to(Story *story, int64_t first, int64_t end_step) {
    for (int64_t i = first; i < end_step; i++)
        step(story, i, 0);
}

static void all_ended(Story *story, int64_t at) {
    ended(story, 0, 0, 0, at, NULL);
    ended(story, 1, 0, 0, at, NULL);
    ended(story, 1, 1, 0, at, NULL);
}

Test(job, runs_to_its_end) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 0);
    run_to(&story, 0, 5);
    heartbeats(&story, 5);
    all_saved(&story, 5);
    committed(&story, 5);
    cr_expect_eq(action(&story, JOB_ACT_DROP)->first_step, 0);
    cr_expect_eq(action(&story, JOB_ACT_DROP)->step, 5);
    run_to(&story, 5, 10);
    all_saved(&story, 10);
    committed(&story, 10);
    cr_expect_eq(count(&story, JOB_ACT_DROP), 0, "nobody has said that it is behind step 10");
    all_ended(&story, 10);
    cr_expect_eq(story.job.state, JOB_DONE);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_DONE);
    cr_expect_eq(count(&story, JOB_ACT_FINISH), 1);
    end(&story);
}

/* Steps that were skipped are no failure, but the last one leaves a model that has diverged. */
Test(job, whose_last_step_is_not_finite_has_diverged) {
    for (int64_t skipped = 8; skipped < 10; skipped++) {
        Story story;
        begin_usual(&story);
        run_to(&story, 0, skipped);
        send(&story,
             (JobEvent){
                 .kind = JOB_EV_STEP, .step = skipped, .save_due = skipped == 9, .skipped = true});
        run_to(&story, skipped + 1, 10);
        all_saved(&story, 10);
        cr_expect_eq(action(&story, JOB_ACT_COMMIT)->skipped, skipped == 9);
        committed(&story, 10);
        all_ended(&story, 10);
        cr_expect_eq(story.job.state, skipped == 9 ? JOB_FAILED : JOB_DONE);
        cr_expect_eq(story.job.exit_code, skipped == 9 ? EXIT_CODE_DIVERGED : EXIT_CODE_DONE);
        cr_expect(skipped != 9 || strstr(story.job.failure.text, "of its last step, 9, were not"),
                  "%s", story.job.failure.text);
        end(&story);
    }
}

/* Its last checkpoint says so, until the job has more steps. */
Test(job, that_diverged_has_when_it_is_resumed) {
    for (int more = 0; more < 2; more++) {
        Story story;
        JobSetup setup = usual_setup();
        setup.resumed = setup.last_skipped = true;
        setup.first_step = 10;
        setup.end_step = 10 + more;
        begin(&story, &setup);
        cr_expect_eq(story.job.state, more ? JOB_RUNNING : JOB_FAILED);
        cr_expect(more || (story.job.exit_code == EXIT_CODE_DIVERGED &&
                           strstr(story.job.failure.text, "of its last step, 9, were not")),
                  "%d: %s", story.job.exit_code, story.job.failure.text);
        end(&story);
    }
}

Test(job, waits_for_all_that_is_due_whatever_comes_first) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 9);
    all_ended(&story, 10);
    cr_expect_eq(story.job.state, JOB_RUNNING, "step 9 is not known");
    send(&story, (JobEvent){.kind = JOB_EV_STEP, .step = 9, .save_due = true, .eval_due = true});
    cr_expect_eq(story.job.state, JOB_RUNNING);
    saved(&story, 0, 0, 10);
    saved(&story, 1, 0, 10);
    saved(&story, 1, 1, 10);
    cr_expect_eq(story.actions.n, 0,
                 "the evaluation is not known: behind a resume it would be lost");
    send(&story, (JobEvent){.kind = JOB_EV_EVALUATED, .step = 10});
    cr_expect_eq(action(&story, JOB_ACT_COMMIT)->step, 10);
    committed(&story, 10);
    cr_expect_eq(story.job.state, JOB_DONE);
    end(&story);
}

Test(job, says_what_never_came) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 10);
    all_ended(&story, 10);
    saved(&story, 0, 0, 10);
    saved(&story, 1, 0, 10);
    story.now_ms += 20001;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(count(&story, JOB_ACT_RESUME), 1, "it may have been lost");
    send(&story, (JobEvent){.kind = JOB_EV_RESUMED});
    run_to(&story, 0, 10);
    all_ended(&story, 10);
    story.now_ms += 20001;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect(strstr(story.job.failure.text, "the save of step 5 by stage 0, replica 0"), "%s",
              story.job.failure.text);
    end(&story);
}

Test(job, a_dead_worker_is_replaced_and_the_others_are_left_alone) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 5);
    heartbeats(&story, 5);
    all_saved(&story, 5);
    committed(&story, 5);
    heartbeats(&story, 7);
    ended(&story, 1, 1, ERR_KILLED, -1, "killed by signal 9");
    cr_assert_eq(story.actions.n, 2);
    cr_expect_eq(story.actions.items[0].kind, JOB_ACT_FENCE, "the fence comes first");
    cr_expect_eq(story.actions.items[0].attempt, 2);
    const JobAction *invoke = action(&story, JOB_ACT_INVOKE);
    cr_expect(invoke->stage == 1 && invoke->replica == 1 && invoke->attempt == 2);
    cr_expect_eq(invoke->step, 5, "from the last commit");
    cr_expect(invoke->resumed);
    cr_expect_eq(invoke->delay_ms, 0);
    cr_expect_eq(job_worker(&story.job, 1, 1)->death_step, 7);
    cr_expect_eq(story.job.state, JOB_RUNNING);
    end(&story);
}

Test(job, before_the_first_save_a_successor_begins_at_the_beginning) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 3);
    ended(&story, 0, 0, ERR_KILLED, -1, "killed");
    cr_expect_eq(action(&story, JOB_ACT_INVOKE)->step, 0);
    cr_expect_not(action(&story, JOB_ACT_INVOKE)->resumed);
    end(&story);
}

Test(job, nothing_is_dropped_under_a_worker_that_replays) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 5);
    heartbeats(&story, 5);
    saved(&story, 0, 0, 5);
    saved(&story, 1, 0, 5);
    saved(&story, 1, 1, 5);
    ended(&story, 1, 0, ERR_KILLED, -1, "killed"); /* after its save, before the commit */
    cr_expect_eq(action(&story, JOB_ACT_INVOKE)->step, 0);
    committed(&story, 5);
    cr_expect_eq(count(&story, JOB_ACT_DROP), 0, "attempt 2 replays from step 0");
    heartbeat(&story, 1, 0, 3);
    cr_expect_eq(action(&story, JOB_ACT_DROP)->step, 3);
    heartbeat(&story, 1, 0, 6);
    cr_expect_eq(action(&story, JOB_ACT_DROP)->first_step, 3);
    cr_expect_eq(action(&story, JOB_ACT_DROP)->step, 5);
    end(&story);
}

Test(job, dying_at_one_step_again_and_again_fails_the_job) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 4);
    ended(&story, 1, 0, ERR_TIMEOUT, 4, "waited too long");
    cr_expect_eq(action(&story, JOB_ACT_INVOKE)->delay_ms, 0);
    ended(&story, 1, 0, ERR_TIMEOUT, 4, "waited too long");
    cr_expect_gt(action(&story, JOB_ACT_INVOKE)->delay_ms, 0, "the second time it waits a little");
    ended(&story, 1, 0, ERR_TIMEOUT, 4, "waited too long");
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_FAILED);
    cr_expect_eq(story.job.failure.code, ERR_WORKER);
    cr_expect_str_eq(story.job.failure.text,
                     "stage 1, replica 0 failed 3 times in a row at step 4: "
                     "waited too long");
    cr_expect_eq(count(&story, JOB_ACT_FINISH), 1);
    end(&story);
}

Test(job, dying_at_ever_later_steps_goes_on_for_ever) {
    Story story;
    JobSetup setup = usual_setup();
    setup.end_step = 1000;
    begin(&story, &setup);
    for (int64_t at = 1; at < 200; at++) {
        heartbeat(&story, 0, 0, at);
        ended(&story, 0, 0, ERR_KILLED, -1, "killed");
        cr_assert_eq(story.job.state, JOB_RUNNING);
    }
    cr_expect_eq(job_worker(&story.job, 0, 0)->restarts, 199);
    end(&story);
}

Test(job, dying_at_changing_steps_without_progress_fails_in_the_end) {
    Story story;
    begin_usual(&story);
    heartbeat(&story, 0, 0, 8);
    int64_t deaths = 0;
    for (; story.job.state == JOB_RUNNING && deaths < 1000; deaths++) {
        heartbeat(&story, 0, 0, 3 + deaths % 3);
        ended(&story, 0, 0, ERR_KILLED, -1, "killed");
    }
    cr_expect_eq(deaths, 16);
    cr_expect(strstr(story.job.failure.text, "never came beyond step 8"), "%s",
              story.job.failure.text);
    end(&story);
}

/* Heartbeats are seldom: that the norms of a step are complete says how far all workers came. */
Test(job, how_far_a_dead_worker_came_is_known_from_the_norms) {
    Story story;
    JobSetup setup = usual_setup();
    setup.end_step = 1000;
    begin(&story, &setup);
    heartbeats(&story, 0);
    run_to(&story, 0, 5);
    all_saved(&story, 5);
    committed(&story, 5);
    run_to(&story, 5, 8);
    ended(&story, 1, 1, ERR_KILLED, -1, "killed");
    cr_expect_eq(job_worker(&story.job, 1, 1)->death_step, 8);
    ended(&story, 1, 1, ERR_KILLED, -1, "killed"); /* while it replays: nothing is known */
    cr_expect_eq(job_worker(&story.job, 1, 1)->death_step, 5);
    cr_expect(job_worker(&story.job, 1, 1)->death_vague);
    heartbeat(&story, 1, 1, 7);
    ended(&story, 1, 1, ERR_KILLED, -1, "killed");
    cr_expect_eq(job_worker(&story.job, 1, 1)->death_step, 7);
    cr_expect_eq(story.job.state, JOB_RUNNING);
    run_to(&story, 8, 12);
    ended(&story, 1, 1, ERR_TIMEOUT, 11, "waited too long");
    cr_expect_eq(job_worker(&story.job, 1, 1)->death_step, 11, "it says so itself");
    end(&story);
}

/* Each attempt begins at one step, says nothing, and yet gets further. */
Test(job, a_worker_that_gets_further_does_not_fail_in_a_row) {
    Story story;
    JobSetup setup = usual_setup();
    setup.end_step = 1000;
    begin(&story, &setup);
    for (int64_t at = 0; at < 200; at += 2) {
        run_to(&story, at, at + 1);
        ended(&story, 1, 0, ERR_KILLED, -1, "killed");
        ended(&story, 1, 0, ERR_KILLED, -1, "killed");
        cr_assert_eq(story.job.state, JOB_RUNNING, "%s", story.job.failure.text);
        run_to(&story, at + 1, at + 2);
    }
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(story.job.state, JOB_RUNNING);
        ended(&story, 1, 0, ERR_KILLED, -1, "killed");
    }
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_str_eq(story.job.failure.text,
                     "stage 1, replica 0 failed 3 times and never came beyond step 200; the last "
                     "time, at step 0 or later: killed");
    end(&story);
}

Test(job, no_restarts_allowed) {
    Story story;
    JobSetup setup = usual_setup();
    setup.max_restarts = 0;
    begin(&story, &setup);
    ended(&story, 0, 0, ERR_KILLED, -1, "killed by signal 9");
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_str_eq(story.job.failure.text,
                     "stage 0, replica 0 failed 1 time in a row at step 0: killed by signal 9");
    end(&story);
}

Test(job, an_error_that_no_retry_helps_fails_at_once) {
    static const struct {
        int code, exit_code;
    } cases[] = {{ERR_ARGUMENT, EXIT_CODE_FAILED},   {ERR_FORMAT, EXIT_CODE_FAILED},
                 {ERR_DIVERGED, EXIT_CODE_DIVERGED}, {ERR_UNSUPPORTED, EXIT_CODE_USAGE},
                 {ERR_AUTH, EXIT_CODE_UNREACHABLE},  {ERR_INTERNAL, EXIT_CODE_FAILED}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Story story;
        begin_usual(&story);
        ended(&story, 1, 1, cases[i].code, 6, "because");
        cr_expect_eq(story.job.state, JOB_FAILED);
        cr_expect_eq(story.job.exit_code, cases[i].exit_code);
        cr_expect_eq(story.job.failure.code, cases[i].code);
        cr_expect_str_eq(story.job.failure.text, "stage 1, replica 1 at step 6: because");
        cr_expect_eq(count(&story, JOB_ACT_INVOKE), 0);
        end(&story);
    }
}

Test(job, unreachable_to_the_last_is_exit_code_3) {
    Story story;
    begin_usual(&story);
    for (int i = 0; i < 3; i++)
        ended(&story, 0, 0, ERR_UNREACHABLE, 0, "no relay");
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_UNREACHABLE);
    end(&story);
}

Test(job, events_of_other_attempts_change_nothing) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 2);
    ended(&story, 1, 0, ERR_KILLED, -1, "killed");
    JobEvent event = {.kind = JOB_EV_EXITED,
                      .stage = 1,
                      .attempt = 1,
                      .code = ERR_SUPERSEDED,
                      .text = "attempt 2 has been started"};
    send(&story, event);
    cr_expect_eq(story.actions.n, 0);
    event.code = ERR_FORMAT; /* even what would fail the job */
    send(&story, event);
    cr_expect_eq(story.job.state, JOB_RUNNING);
    event = (JobEvent){.kind = JOB_EV_HEARTBEAT, .stage = 1, .attempt = 1, .step = 9};
    send(&story, event);
    cr_expect_eq(job_worker(&story.job, 1, 0)->step, 0);
    cr_expect_eq(job_worker(&story.job, 1, 0)->heard_ms, -1);
    event = (JobEvent){.kind = JOB_EV_HEARTBEAT, .stage = 7, .attempt = 1};
    send(&story, event);
    cr_expect_eq(story.actions.n, 0);
    end(&story);
}

Test(job, a_worker_told_to_end_by_somebody_else_is_replaced) {
    Story story;
    begin_usual(&story);
    ended(&story, 0, 0, ERR_CANCELLED, 3, "SIGTERM");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    ended(&story, 0, 0, ERR_SUPERSEDED, 4, "a fence nobody here wrote");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    ended(&story, 0, 0, 0, 4, NULL);
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1, "it ended before its last step");
    end(&story);
}

Test(job, silence_is_death_but_not_before_its_time) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 0);
    story.now_ms += 5000;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.actions.n, 0);
    heartbeat(&story, 0, 0, 1);
    heartbeat(&story, 1, 1, 1);
    story.now_ms += 1;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_assert_eq(count(&story, JOB_ACT_INVOKE), 1);
    const JobAction *invoke = action(&story, JOB_ACT_INVOKE);
    cr_expect(invoke->stage == 1 && invoke->replica == 0 && invoke->attempt == 2);
    cr_expect_eq(action(&story, JOB_ACT_FENCE)->attempt, 2);
    cr_expect(strstr(job_worker(&story.job, 1, 0)->death_text, "no heartbeat for 5001 ms"));
    end(&story);
}

Test(job, nobody_is_silent_while_the_relay_is_away) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 0);
    story.now_ms += 100000;
    send(&story, (JobEvent){.kind = JOB_EV_TICK, .blind = true});
    cr_expect_eq(story.actions.n, 0);
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 3);
    end(&story);
}

Test(job, slow_steps_allow_longer_silence) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 0);
    for (int64_t i = 0; i < 4; i++) { /* 3 s a step */
        story.now_ms += 2900;
        step(&story, i, 0);
        heartbeats(&story, i);
    }
    cr_expect_eq(job_median_step_ms(&story.job), 3000);
    cr_expect_eq(job_silence_ms(&story.job), 30000);
    story.now_ms += 29000;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.actions.n, 0, "three times slower than the rest is not dead");
    story.now_ms += 1001;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 3);
    end(&story);
}

Test(job, a_slow_start_has_a_limit_of_its_own) {
    Story story;
    begin_usual(&story);
    story.now_ms += 30000;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.actions.n, 0, "a start may take longer than a silence");
    heartbeat(&story, 0, 0, 0);
    heartbeat(&story, 1, 0, 0);
    story.now_ms += 1;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_assert_eq(count(&story, JOB_ACT_INVOKE), 1);
    cr_expect_eq(action(&story, JOB_ACT_INVOKE)->replica, 1);
    cr_expect(strstr(job_worker(&story.job, 1, 1)->death_text, "of its start"));
    end(&story);
}

Test(job, a_start_that_the_relay_puts_off_has_its_time_later) {
    Story story;
    begin_usual(&story);
    heartbeat(&story, 0, 0, 0);
    heartbeat(&story, 1, 1, 0);
    send(&story, (JobEvent){.kind = JOB_EV_PUT_OFF, .stage = 1, .attempt = 1});
    for (int i = 0; i < 20; i++) {
        story.now_ms += 5000;
        heartbeat(&story, 0, 0, 0);
        heartbeat(&story, 1, 1, 0);
        send(&story, (JobEvent){.kind = JOB_EV_TICK});
        cr_expect_eq(story.actions.n, 0, "it is not there yet");
        if (i == 14)
            send(&story, (JobEvent){.kind = JOB_EV_INVOKED, .stage = 1, .attempt = 1});
    }
    story.now_ms += 5001;
    heartbeat(&story, 0, 0, 0);
    heartbeat(&story, 1, 1, 0);
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_assert_eq(count(&story, JOB_ACT_INVOKE), 1);
    cr_expect(strstr(job_worker(&story.job, 1, 0)->death_text, "within 30001 ms of its start"));
    end(&story);
}

Test(job, a_worker_that_cannot_be_started) {
    Story story;
    begin_usual(&story);
    JobEvent event = {.kind = JOB_EV_INVOKE_FAILED,
                      .stage = 1,
                      .replica = 1,
                      .attempt = 1,
                      .code = ERR_IO,
                      .text = "no process now"};
    send(&story, event);
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    event.attempt = 2;
    event.code = ERR_NOT_FOUND;
    event.text = "there is no such program";
    send(&story, event);
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_str_eq(story.job.failure.text, "stage 1, replica 1: there is no such program");
    end(&story);
}

Test(job, a_commit_that_fails_is_tried_again) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 5);
    all_saved(&story, 5);
    JobEvent event = {
        .kind = JOB_EV_COMMIT_FAILED, .step = 5, .code = ERR_IO, .text = "/out/5: no room"};
    for (int i = 1; i < JOB_MAX_COMMITS; i++) {
        send(&story, event);
        cr_assert_eq(story.job.state, JOB_RUNNING);
        cr_expect_eq(action(&story, JOB_ACT_COMMIT)->step, 5);
        cr_expect_gt(action(&story, JOB_ACT_COMMIT)->delay_ms, 0);
    }
    send(&story, event);
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_str_eq(story.job.failure.text, "saving step 5: /out/5: no room");
    end(&story);
}

Test(job, a_commit_that_fails_behind_a_newer_one_is_not_missed) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 10);
    all_saved(&story, 5);
    all_saved(&story, 10);
    committed(&story, 10);
    for (int i = 0; i <= JOB_MAX_COMMITS; i++) {
        send(&story, (JobEvent){.kind = JOB_EV_COMMIT_FAILED,
                                .step = 5,
                                .code = i % 2 ? ERR_IO : ERR_NOT_FOUND,
                                .text = "/out/5: cleaned away"});
        cr_assert_eq(story.job.state, JOB_RUNNING);
        cr_expect_eq(story.actions.n, 0);
    }
    end(&story);
}

Test(job, a_commit_that_is_wrong_is_not_tried_again) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 5);
    all_saved(&story, 5);
    send(&story, (JobEvent){.kind = JOB_EV_COMMIT_FAILED,
                            .step = 5,
                            .code = ERR_FORMAT,
                            .text = "tensor 'x' is missing"});
    cr_expect_eq(story.job.state, JOB_FAILED);
    end(&story);
}

Test(job, stops_cleanly_when_asked) {
    static const struct {
        JobCancel cancel;
        int exit_code;
    } cases[] = {{JOB_CANCEL_INTERRUPT, EXIT_CODE_INTERRUPTED},
                 {JOB_CANCEL_TERMINATE, EXIT_CODE_CANCELLED}};
    for (int i = 0; i < 2; i++) {
        Story story;
        begin_usual(&story);
        run_to(&story, 0, 3);
        heartbeats(&story, 3);
        send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = cases[i].cancel});
        cr_expect_eq(story.job.state, JOB_SAVING);
        cr_expect(action(&story, JOB_ACT_CONTROL)->stop);
        ended(&story, 1, 1, 0, 4, NULL); /* before its decision is known here */
        step(&story, 3, DECISION_STOP);
        cr_expect_eq(story.job.end_step, 4);
        all_saved(&story, 4);
        ended(&story, 0, 0, 0, 4, NULL);
        ended(&story, 1, 0, 0, 4, NULL);
        cr_expect_eq(story.job.state, JOB_SAVING, "not committed yet");
        committed(&story, 4);
        cr_expect_eq(story.job.state, JOB_CANCELLED);
        cr_expect_eq(story.job.exit_code, cases[i].exit_code);
        cr_expect_eq(story.job.failure.code, 0);
        end(&story);
    }
}

Test(job, a_wish_to_stop_that_comes_too_late_is_done) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 10);
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_INTERRUPT});
    all_saved(&story, 10);
    committed(&story, 10);
    all_ended(&story, 10);
    cr_expect_eq(story.job.state, JOB_DONE);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_DONE);
    end(&story);
}

Test(job, a_worker_that_dies_while_stopping_is_replaced_to_finish_the_save) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 3);
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_INTERRUPT});
    step(&story, 3, DECISION_STOP);
    ended(&story, 1, 0, ERR_KILLED, -1, "killed");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    all_saved(&story, 4);
    committed(&story, 4);
    all_ended(&story, 4);
    cr_expect_eq(story.job.state, JOB_CANCELLED);
    end(&story);
}

/* A successor would know nothing of the stop, and wait for steps that never come. */
Test(job, a_worker_that_dies_behind_the_last_save_of_a_stop_is_done) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 3);
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_INTERRUPT});
    step(&story, 3, DECISION_STOP);
    all_saved(&story, 4);
    committed(&story, 4);
    ended(&story, 1, 0, ERR_KILLED, -1, "killed");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 0);
    cr_expect_eq(story.job.state, JOB_SAVING);
    ended(&story, 0, 0, 0, 4, NULL);
    ended(&story, 1, 1, ERR_KILLED, -1, "killed");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 0);
    cr_expect_eq(story.job.state, JOB_CANCELLED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_INTERRUPTED);
    end(&story);
}

Test(job, cancelling_twice_ends_at_once) {
    Story story;
    begin_usual(&story);
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_TERMINATE});
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_INTERRUPT});
    cr_expect_eq(story.job.state, JOB_CANCELLED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_INTERRUPTED);
    cr_expect_eq(count(&story, JOB_ACT_FINISH), 1);
    end(&story);
}

Test(job, a_stop_that_takes_too_long_ends) {
    Story story;
    begin_usual(&story);
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_TERMINATE});
    for (int i = 0; i < 31 && story.job.state == JOB_SAVING; i++) {
        story.now_ms += 2000;
        heartbeats(&story, 0);
        send(&story, (JobEvent){.kind = JOB_EV_TICK});
    }
    cr_expect_eq(story.job.state, JOB_CANCELLED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_CANCELLED);
    cr_expect(strstr(story.job.failure.text, "did not stop in time"));
    end(&story);
}

Test(job, cancelling_before_it_runs) {
    Job job;
    JobActions actions = {0};
    job_init(&job);
    cr_assert_eq(job_step(&job, &(JobEvent){.kind = JOB_EV_START}, &actions), 0);
    actions.n = 0;
    JobEvent event = {.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_INTERRUPT};
    cr_assert_eq(job_step(&job, &event, &actions), 0);
    cr_expect_eq(job.state, JOB_CANCELLED);
    cr_assert_eq(actions.n, 1);
    cr_expect_eq(actions.items[0].kind, JOB_ACT_FINISH);
    actions.n = 0;
    cr_assert_eq(job_step(&job, &(JobEvent){.kind = JOB_EV_PROFILED}, &actions), 0);
    cr_expect_eq(actions.n, 0, "what is final stays so");
    job_done(&job);
    job_actions_done(&actions);
}

Test(job, planning_that_fails) {
    Job job;
    JobActions actions = {0};
    job_init(&job);
    job_step(&job, &(JobEvent){.kind = JOB_EV_START}, &actions);
    job_step(&job, &(JobEvent){.kind = JOB_EV_PROFILED}, &actions);
    job_step(&job,
             &(JobEvent){.kind = JOB_EV_FAIL, .code = ERR_INFEASIBLE, .text = "too many stages"},
             &actions);
    cr_expect_eq(job.state, JOB_FAILED);
    cr_expect_eq(job.exit_code, EXIT_CODE_INFEASIBLE);
    cr_expect_str_eq(job.failure.text, "too many stages");
    job_done(&job);
    job_actions_done(&actions);
}

Test(job, saves_by_time_are_asked_for_once) {
    Story story;
    JobSetup setup = usual_setup();
    setup.save_every_ms = 60000;
    begin(&story, &setup);
    for (int i = 0; i < 59; i++) {
        story.now_ms += 1000;
        heartbeats(&story, 0);
        send(&story, (JobEvent){.kind = JOB_EV_TICK});
        cr_assert_eq(story.actions.n, 0);
    }
    story.now_ms += 1000;
    heartbeats(&story, 0);
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect(action(&story, JOB_ACT_CONTROL)->save);
    cr_expect_not(action(&story, JOB_ACT_CONTROL)->stop);
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.actions.n, 0, "asked for already");
    step(&story, 0, 0);
    cr_expect_eq(story.actions.n, 0, "not decided yet");
    step(&story, 1, DECISION_SAVE);
    cr_expect_not(action(&story, JOB_ACT_CONTROL)->save, "decided: the wish goes");
    step(&story, 2, DECISION_SAVE);
    cr_expect_eq(story.actions.n, 0);
    all_saved(&story, 2);
    all_saved(&story, 3);
    committed(&story, 3);
    committed(&story, 2);
    cr_expect_eq(story.job.committed, 3, "commits may end in any order");
    end(&story);
}

Test(job, resumes_where_a_checkpoint_stands) {
    Story story;
    JobSetup setup = usual_setup();
    setup.first_step = 6;
    setup.resumed = true;
    begin(&story, &setup);
    cr_expect_eq(action(&story, JOB_ACT_INVOKE)->step, 6);
    cr_expect(action(&story, JOB_ACT_INVOKE)->resumed);
    step(&story, 6, 0);
    cr_expect_eq(story.job.next_step, 7);
    ended(&story, 0, 0, ERR_KILLED, -1, "killed");
    cr_expect_eq(action(&story, JOB_ACT_INVOKE)->step, 6);
    saved(&story, 0, 0, 6); /* of before: nothing to commit */
    saved(&story, 1, 0, 6);
    saved(&story, 1, 1, 6);
    cr_expect_eq(story.actions.n, 0);
    end(&story);
}

Test(job, resuming_a_finished_job_is_done) {
    Story story;
    JobSetup setup = usual_setup();
    setup.first_step = 10;
    setup.resumed = true;
    begin(&story, &setup);
    cr_expect_eq(story.job.state, JOB_DONE);
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 0);
    end(&story);
}

Test(job, evaluates_only) {
    static const int32_t one[] = {1};
    Story story;
    JobSetup setup = usual_setup();
    setup.n_stages = 1;
    setup.replicas = one;
    setup.first_step = setup.end_step = 10;
    setup.resumed = true;
    setup.eval_only = true;
    begin(&story, &setup);
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    ended(&story, 0, 0, 0, 10, NULL);
    cr_expect_eq(story.job.state, JOB_RUNNING);
    send(&story, (JobEvent){.kind = JOB_EV_EVALUATED, .step = 10});
    cr_expect_eq(story.job.state, JOB_DONE);
    end(&story);
}

Test(job, a_hard_limit_or_a_broken_conductor_fails_the_job) {
    Story story;
    begin_usual(&story);
    send(&story,
         (JobEvent){.kind = JOB_EV_FAIL, .code = ERR_FULL, .text = "writing metrics: disk full"});
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_FAILED);
    cr_expect_eq(count(&story, JOB_ACT_FINISH), 1);
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.actions.n, 0);
    end(&story);
}

/* ---- a relay that loses objects ---- */

static void lost(Story *story) {
    send(story, (JobEvent){.kind = JOB_EV_LOST, .text = "the relay has lost objects: all"});
}

/* All go back to `step`, as next attempts, and nobody is fenced off: no key is the same. */
static void resumed(Story *story, int64_t at, int64_t attempt) {
    send(story, (JobEvent){.kind = JOB_EV_RESUMED});
    cr_assert_eq(count(story, JOB_ACT_INVOKE), 3);
    cr_expect_eq(count(story, JOB_ACT_FENCE), 0);
    cr_expect_eq(action(story, JOB_ACT_INVOKE)->step, at);
    cr_expect_eq(action(story, JOB_ACT_INVOKE)->resumed, at > 0);
    cr_expect_eq(action(story, JOB_ACT_INVOKE)->attempt, attempt);
    cr_expect_eq(story->job.next_step, at);
}

Test(job, a_relay_that_lost_objects_sends_all_back_to_the_last_save) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 0);
    run_to(&story, 0, 8);
    heartbeats(&story, 8);
    all_saved(&story, 5);
    committed(&story, 5);
    lost(&story);
    cr_expect_eq(story.actions.n, 1);
    cr_expect_eq(count(&story, JOB_ACT_RESUME), 1);
    lost(&story);
    cr_expect_eq(story.actions.n, 0, "that is known");
    ended(&story, 0, 0, ERR_KILLED, -1, "killed by signal 9");
    heartbeats(&story, 8);
    step(&story, 8, DECISION_STOP);
    saved(&story, 0, 0, 10);
    story.now_ms += 100000;
    send(&story, (JobEvent){.kind = JOB_EV_TICK});
    cr_expect_eq(story.actions.n, 0, "nothing of the old generation counts");
    resumed(&story, 5, 2);
    heartbeats(&story, 5);
    run_to(&story, 5, 10);
    cr_expect_eq(story.job.next_step, 10);
    all_saved(&story, 10);
    committed(&story, 10);
    all_ended(&story, 10);
    cr_expect_eq(story.job.state, JOB_DONE);
    cr_expect_eq(story.job.resumes, 1);
    cr_expect_eq(job_worker(&story.job, 0, 0)->restarts, 0, "nobody has died");
    end(&story);
}

/* What all have saved is waited for, and gone on from; with no save at all they begin anew. */
Test(job, a_commit_under_way_when_the_relay_loses_objects_counts) {
    for (int under_way = 0; under_way < 2; under_way++) {
        Story story;
        begin_usual(&story);
        run_to(&story, 0, 6);
        if (under_way)
            all_saved(&story, 5);
        lost(&story);
        if (under_way)
            committed(&story, 5);
        cr_expect_eq(count(&story, JOB_ACT_DROP), 0, "there is no generation to drop in");
        resumed(&story, under_way ? 5 : 0, 2);
        end(&story);
    }
}

Test(job, losses_are_made_good_as_often_as_deaths) {
    Story story;
    JobSetup setup = usual_setup();
    setup.end_step = 1000;
    begin(&story, &setup);
    for (int64_t at = 0; at < 50; at += 5) { /* two between saves are allowed */
        for (int i = 0; i < 2; i++) {
            lost(&story);
            resumed(&story, at, 2 * at / 5 + 2 + i);
        }
        run_to(&story, at, at + 5);
        all_saved(&story, at + 5);
        committed(&story, at + 5);
    }
    for (int i = 0; i < 2; i++) {
        lost(&story);
        resumed(&story, 50, 22 + i);
    }
    lost(&story);
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_eq(story.job.exit_code, EXIT_CODE_FAILED);
    cr_expect_str_eq(story.job.failure.text,
                     "the relay has lost objects: all; that is loss 3 since step 50 was saved, and "
                     "limits.restarts is 2");
    end(&story);
}

Test(job, a_loss_that_nobody_needs_any_more) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 10);
    all_saved(&story, 10);
    lost(&story);
    cr_expect_eq(story.actions.n, 0, "the last save is being committed");
    committed(&story, 10);
    lost(&story);
    cr_expect_eq(story.actions.n, 0);
    all_ended(&story, 10);
    cr_expect_eq(story.job.state, JOB_DONE);
    end(&story);
}

/* The wish is said again under the new generation; what the old one decided is void. */
Test(job, a_loss_while_stopping) {
    Story story;
    begin_usual(&story);
    run_to(&story, 0, 5);
    all_saved(&story, 5);
    committed(&story, 5);
    step(&story, 5, 0);
    lost(&story);
    send(&story, (JobEvent){.kind = JOB_EV_CANCEL, .cancel = JOB_CANCEL_INTERRUPT});
    cr_expect_eq(story.job.state, JOB_SAVING);
    cr_expect_eq(story.actions.n, 0);
    resumed(&story, 5, 2);
    cr_expect(action(&story, JOB_ACT_CONTROL)->stop);
    step(&story, 5, DECISION_STOP);
    cr_expect_eq(story.job.end_step, 6);
    lost(&story);
    resumed(&story, 5, 3);
    cr_expect_eq(story.job.end_step, 10);
    step(&story, 5, 0);
    step(&story, 6, DECISION_STOP);
    all_saved(&story, 7);
    committed(&story, 7);
    all_ended(&story, 7);
    cr_expect_eq(story.job.state, JOB_CANCELLED);
    end(&story);
}

static void all_wait(Story *story, int64_t at) {
    heartbeats(story, at);
    story->now_ms += 20001;
    heartbeats(story, at);
}

/* One object is gone: who waits for it gives up, while all others live. */
Test(job, a_wait_in_vain_sends_all_back_once) {
    Story story;
    begin_usual(&story);
    all_wait(&story, 3);
    ended(&story, 1, 0, ERR_TIMEOUT, 3, "'job/g1/t3/a.0-1.0' did not come");
    cr_expect_eq(count(&story, JOB_ACT_RESUME), 1);
    cr_expect_str_eq(story.job.lost_text, "stage 1, replica 0 at step 3, while all others run: "
                                          "'job/g1/t3/a.0-1.0' did not come");
    ended(&story, 0, 0, ERR_TIMEOUT, 3, "waited, too");
    cr_expect_eq(story.actions.n, 0);
    resumed(&story, 0, 2);
    all_wait(&story, 3);
    ended(&story, 1, 1, ERR_TIMEOUT, 3, "'job/g2/t3/a.0-1.1' did not come");
    cr_expect_eq(story.job.state, JOB_FAILED);
    cr_expect_str_eq(story.job.failure.text,
                     "stage 1, replica 1 at step 3, while all others run: 'job/g2/t3/a.0-1.1' did "
                     "not come; again, after all workers went back to the last save");
    end(&story);
}

/* Behind a save it may happen again. */
Test(job, a_wait_in_vain_behind_a_save) {
    Story story;
    begin_usual(&story);
    all_wait(&story, 3);
    ended(&story, 1, 0, ERR_TIMEOUT, 3, "waited");
    resumed(&story, 0, 2);
    run_to(&story, 0, 5);
    all_saved(&story, 5);
    committed(&story, 5);
    all_wait(&story, 7);
    ended(&story, 1, 0, ERR_TIMEOUT, 7, "waited");
    cr_expect_eq(count(&story, JOB_ACT_RESUME), 1);
    end(&story);
}

/* Somebody else has died, or has not yet come so far: then it is worth waiting. */
Test(job, a_wait_for_a_worker_that_began_anew_is_not_in_vain) {
    Story story;
    begin_usual(&story);
    all_wait(&story, 3);
    ended(&story, 0, 0, ERR_KILLED, -1, "killed");
    ended(&story, 1, 0, ERR_TIMEOUT, 3, "waited");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    heartbeats(&story, 3);
    story.now_ms += 10000;
    ended(&story, 1, 1, ERR_TIMEOUT, 3, "waited");
    cr_expect_eq(count(&story, JOB_ACT_INVOKE), 1);
    end(&story);
}

/* What the coordinator alone waits for. */
Test(job, norms_that_never_come) {
    Story story;
    begin_usual(&story);
    heartbeats(&story, 0);
    run_to(&story, 0, 4);
    heartbeats(&story, 5);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(story.job.resumes, 0);
        story.now_ms += 4001;
        heartbeats(&story, 5);
        send(&story, (JobEvent){.kind = JOB_EV_TICK});
    }
    cr_expect_eq(count(&story, JOB_ACT_RESUME), 1);
    cr_expect_str_eq(story.job.lost_text,
                     "all workers are beyond that step, but the norms of step 4 never came");
    end(&story);
}

/* Any order of any events: no crash, and what is final stays so. */
Test(job, survives_any_order_of_events) {
    uint32_t state = 12345;
    for (int run = 0; run < 300; run++) {
        Story story;
        JobSetup setup = usual_setup();
        begin(&story, &setup);
        JobState before = JOB_RUNNING;
        for (int i = 0; i < 300; i++) {
            uint32_t word[6];
            for (int k = 0; k < 6; k++) {
                state = state * 1664525u + 1013904223u;
                word[k] = state >> 8;
            }
            static const int codes[] = {0, ERR_KILLED, ERR_SUPERSEDED, ERR_TIMEOUT, ERR_FORMAT};
            JobEvent event = {.kind = (JobEventKind)(JOB_EV_INVOKE_FAILED + word[0] % 13),
                              .stage = (int32_t)(word[1] % 3),
                              .replica = (int32_t)(word[1] / 3 % 2),
                              .attempt = 1 + word[2] % 3,
                              .step = word[3] % 12,
                              .code = codes[word[4] % (run % 2 ? 4 : 5)],
                              .decision = (int)(word[5] % 4),
                              .cancel = JOB_CANCEL_INTERRUPT,
                              .text = "any"};
            if ((event.kind == JOB_EV_FAIL || event.kind == JOB_EV_CANCEL ||
                 event.kind == JOB_EV_COMMITTED) &&
                word[5] % 16)
                continue;
            story.now_ms += word[5] % 100;
            send(&story, event);
            if (before == JOB_DONE || before == JOB_FAILED || before == JOB_CANCELLED)
                cr_assert_eq(story.job.state, before);
            before = story.job.state;
        }
        end(&story);
    }
}
