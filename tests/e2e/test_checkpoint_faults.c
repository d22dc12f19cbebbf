/* Checkpoints on disks that fail, fill up, are slow, or lose their power in between. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "core/err.h"
#include "tests/support/e2e.h"

enum { STEPS = 80 };

#define N_OF(array) (int)(sizeof(array) / sizeof(array)[0])
#define WORKER "funcpipe-worker "
#define COORDINATOR "funcpipe "
#define LIMITED "--set", "update.schedule=null", "--set", "plan.replicas=[1,1,1]"

static const char *const more[] = {"--set", "steps=80", NULL};
static const char *const resume[] = {"--set", "steps=80", "--resume", "latest", NULL};

static const char *job(void) {
    return e2e_job("mlp", e2e_mlp);
}

static void train_undisturbed(void) {
    e2e_train_fully(job(), "undisturbed", more);
}

static void check_equal(const char *out) {
    e2e_check_equal("undisturbed", out, STEPS);
    e2e_check_same_rows("undisturbed", out, 0, STEPS);
    e2e_check_rows(out, STEPS);
}

/* Whole checkpoints and nothing else, each of 8 files. */
static void check_checkpoints(const char *out) {
    const char *place = e2e_path("%s/checkpoints", out);
    DIR *dir = opendir(place);
    cr_assert(dir != NULL);
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        const char *folder = e2e_path("%s/checkpoints/%s", out, entry->d_name);
        cr_assert_eq(checkpoint_verify(folder), 0, "%s", err_text());
        cr_assert_eq(e2e_files_in(folder), 8, "%s has %d files", folder, e2e_files_in(folder));
    }
    closedir(dir);
}

static int64_t latest(const char *out) {
    char folder[ORDER_PATH_BYTES];
    int64_t step = 0;
    cr_assert_eq(checkpoint_latest(e2e_path("%s/checkpoints", out), folder, &step), 0, "%s",
                 err_text());
    cr_assert_eq(checkpoint_verify(folder), 0, "%s", err_text());
    return step;
}

/* All logs of the workers, one behind the other. */
static bool logs_say(const char *out, const char *words) {
    for (int stage = 0; stage < 3; stage++) {
        for (int replica = 0; replica < 2; replica++) {
            const char *path = e2e_path("%s/logs/worker-%d.%d.1.log", out, stage, replica);
            if (strstr(e2e_read(path), words))
                return true;
        }
    }
    return false;
}

/* ---- faults that pass ---- */

Test(checkpoint_faults, a_worker_tries_again, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const rules[] = {WORKER "open /checkpoints/20/.tmp- 1 1 EIO",
                                        WORKER "write /checkpoints/20/.tmp- 1 1 EIO",
                                        WORKER "write /checkpoints/30/.tmp- 2 1 ENOSPC",
                                        WORKER "fsync /checkpoints/20/.tmp- 1 1 EIO",
                                        WORKER "fsync /checkpoints/20/.tmp- 2 1 EIO",
                                        WORKER "rename /checkpoints/20/model-00002 1 1 EIO",
                                        WORKER "rename /checkpoints/20/update-00003 1 1 ENOSPC",
                                        WORKER "rename /checkpoints/20/update-00001 1 1 ENOENT",
                                        WORKER "rename /checkpoints/80/model-00001 1 1 EIO"};
    char out[32];
    train_undisturbed();
    for (int i = 0; i < N_OF(rules); i++) {
        snprintf(out, sizeof out, "broken%d", i);
        e2e_break_files(rules[i], true);
        e2e_train_fully(job(), out, more);
        cr_assert(e2e_file_broke(0), "%s: never happened", rules[i]);
        e2e_mend_files();
        cr_assert(logs_say(out, "try 1 of 4 failed: "), "%s: nobody said so", rules[i]);
        cr_assert_eq(e2e_count(out, "worker_started"), 4, "%s: a worker started again", rules[i]);
        check_equal(out);
        check_checkpoints(out);
    }
}

Test(checkpoint_faults, the_coordinator_tries_again, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const rules[] = {COORDINATOR "open /checkpoints/20/.tmp- 1 1 EIO",
                                        COORDINATOR "write /checkpoints/20/.tmp- 1 1 ENOSPC",
                                        COORDINATOR "write /checkpoints/20/.tmp- 2 1 EIO",
                                        COORDINATOR "fsync /checkpoints/20/.tmp- 1 1 EIO",
                                        COORDINATOR "fsync /checkpoints/20/.tmp- 2 1 EIO",
                                        COORDINATOR "rename /checkpoints/20/manifest.json 1 1 EIO",
                                        COORDINATOR "rename /20/model.safetensors.ind 1 1 EIO",
                                        COORDINATOR "rename /checkpoints/80/manifest.json 1 1 EIO"};
    char out[32];
    train_undisturbed();
    for (int i = 0; i < N_OF(rules); i++) {
        snprintf(out, sizeof out, "broken%d", i);
        e2e_break_files(rules[i], true);
        e2e_train_fully(job(), out, more);
        cr_assert(e2e_file_broke(0), "%s: never happened", rules[i]);
        e2e_mend_files();
        cr_assert_geq(e2e_count(out, "commit_failed"), 1, "%s: nobody said so", rules[i]);
        check_equal(out);
        check_checkpoints(out);
    }
}

/* A slow disk delays only the saves. */
Test(checkpoint_faults, a_slow_disk, .init = e2e_enter, .fini = e2e_leave) {
    train_undisturbed();
    e2e_break_files("* fsync /checkpoints/ 1 0 20", false);
    e2e_train_fully(job(), "slow", more);
    e2e_mend_files();
    check_equal("slow");
    check_checkpoints("slow");
}

/* ---- faults that stay ---- */

/* The run ends with these words; what was saved before is whole, and with a mended disk the job
 * goes on from it to the same end. */
static void check_failure_at(const char *out, int64_t step, const char *rules, const char *words) {
    e2e_break_files(rules, false);
    E2e run = e2e_train(job(), out, more);
    int status = e2e_wait(&run);
    e2e_mend_files();
    cr_assert_eq(status, 1, "%d: %s", status, e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), words), "%s", e2e_read(run.err));
    e2e_check_clean(&run);
    cr_assert_eq(latest(out), step - 10);
    check_checkpoints(out);
    e2e_train_fully(job(), out, resume);
    check_equal(out);
    check_checkpoints(out);
}

Test(checkpoint_faults, no_file_gets_its_name, .init = e2e_enter, .fini = e2e_leave) {
    train_undisturbed();
    check_failure_at("broken", 40, WORKER "rename /checkpoints/40/model-00002 1 0 EIO",
                     "/checkpoints/40/model-00002-of-00003.safetensors': Input/output error");
}

Test(checkpoint_faults, full_disk, .init = e2e_enter, .fini = e2e_leave) {
    train_undisturbed();
    check_failure_at("broken", 50, WORKER "write /checkpoints/50/.tmp- 1 0 ENOSPC",
                     "No space left on device");
}

Test(checkpoint_faults, no_manifest, .init = e2e_enter, .fini = e2e_leave) {
    train_undisturbed();
    check_failure_at("broken", 50, COORDINATOR "rename /manifest.json 5 0 EIO",
                     "/manifest.json': Input/output error");
}

/* Only one cannot be committed: the next ones do as well. */
Test(checkpoint_faults, one_manifest, .init = e2e_enter, .fini = e2e_leave) {
    train_undisturbed();
    e2e_break_files(COORDINATOR "rename /checkpoints/40/manifest.json 1 0 EIO", false);
    E2e run = e2e_train(job(), "broken", more);
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    e2e_check_clean(&run);
    cr_assert(strstr(e2e_read(run.out), "checkpoint broken/checkpoints/80\n"), "%s",
              e2e_read(run.out));
    check_equal("broken");
    check_checkpoints("broken");
}

/* A limit on the size of files, instead of a full disk (also under sanitizers). */
Test(checkpoint_faults, file_size_limit, .init = e2e_enter, .fini = e2e_leave) {
    e2e_train_fully(job(), "undisturbed", E2E_ARGS("--set", "steps=80", LIMITED));
    e2e_train_fully(job(), "limited", E2E_ARGS("--set", "steps=40", LIMITED));
    int64_t before = latest("limited");
    e2e_wrap_worker("grep -q '\"stage\":1,' \"$ORDER\" && ulimit -f 8");
    E2e run =
        e2e_train(job(), "limited", E2E_ARGS("--set", "steps=80", LIMITED, "--resume", "latest"));
    cr_assert_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "/model-00002-of-00003.safetensors': File too large"), "%s",
              e2e_read(run.err));
    e2e_check_clean(&run);
    unsetenv("FUNCPIPE_WORKER");
    cr_assert_eq(latest("limited"), before);
    e2e_train_fully(job(), "limited", E2E_ARGS("--set", "steps=80", LIMITED, "--resume", "latest"));
    check_equal("limited");
    check_checkpoints("limited");
}

/* ---- ends in the middle ---- */

typedef struct Cut {
    const char *rules;
    int64_t resumes_at;
} Cut;

/* The coordinator, and with it all, is killed in the middle of a save, a commit, a cleaning. */
Test(checkpoint_faults, killed_in_between, .init = e2e_enter, .fini = e2e_leave) {
    static const Cut cuts[] = {
        {COORDINATOR "write /checkpoints/50/.tmp- 1 1 kill", 40},
        {COORDINATOR "rename /50/model.safetensors.ind 1 1 kill", 40},
        {COORDINATOR "rename /50/model.safetensors.ind 1 1 killed", 40},
        {COORDINATOR "fsync /checkpoints/50/.tmp- 2 1 kill", 40},
        {COORDINATOR "rename /checkpoints/50/manifest.json 1 1 kill", 40},
        {COORDINATOR "rename /checkpoints/50/manifest.json 1 1 killed", 50},
        {COORDINATOR "fsync /checkpoints/10 5 1 kill", 40}, /* 10 is being removed */
    };
    char out[32];
    train_undisturbed();
    for (int i = 0; i < N_OF(cuts); i++) {
        snprintf(out, sizeof out, "cut%d", i);
        e2e_break_files(cuts[i].rules, true);
        E2e run = e2e_train(job(), out, more);
        int status = e2e_wait(&run);
        cr_assert_eq(status, E2E_SIGNALLED + SIGKILL, "%s: %d", cuts[i].rules, status);
        e2e_mend_files();
        cr_assert_geq(latest(out), cuts[i].resumes_at, "%s: %lld", cuts[i].rules,
                      (long long)latest(out));
        e2e_train_fully(job(), out, resume);
        check_equal(out);
        check_checkpoints(out);
    }
}

/* All are killed while a worker is writing. */
Test(checkpoint_faults, killed_while_saving, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const rules[] = {WORKER "write /checkpoints/50/.tmp- 2 1 20000",
                                        WORKER "fsync /checkpoints/50/.tmp- 1 1 20000",
                                        WORKER "rename /50/model-00002-of- 1 1 20000",
                                        WORKER "rename /50/update-00003-of- 1 1 20000"};
    char out[32];
    train_undisturbed();
    for (int i = 0; i < N_OF(rules); i++) {
        snprintf(out, sizeof out, "cut%d", i);
        e2e_break_files(rules[i], true);
        E2e run = e2e_train(job(), out, more);
        cr_assert(e2e_await_path(&run, "broke.0"));
        cr_assert(e2e_await_event(&run, out, "saved", 4), "%s", e2e_read(run.err));
        kill(run.pid, SIGKILL);
        e2e_wait(&run);
        e2e_mend_files();
        cr_assert_eq(latest(out), 40, "%s: %lld", rules[i], (long long)latest(out));
        cr_assert_eq(access(e2e_path("%s/checkpoints/50", out), F_OK), 0);
        e2e_train_fully(job(), out, resume);
        check_equal(out);
        check_checkpoints(out);
    }
}

/* ---- damaged afterwards ---- */

/* The checkpoint from which a successor is to begin has lost a bit: nobody trains on from it. */
Test(checkpoint_faults, a_successor_takes_no_damaged_checkpoint, .init = e2e_enter,
     .fini = e2e_leave) {
    e2e_wrap_worker("if grep -q '\"attempt\":[2-9]' \"$ORDER\"; then\n"
                    "f=$(sed 's/.*\"resume_path\":\"\\([^\"]*\\)\".*/\\1/' "
                    "\"$ORDER\")/model-00002-of-00003.safetensors\n"
                    "printf '\\377' | dd of=\"$f\" bs=1 seek=$(($(stat -c %s \"$f\") - 1)) "
                    "conv=notrunc 2>/dev/null\n"
                    "fi");
    E2e run = e2e_train(job(), "damaged", E2E_ARGS("--set", "steps=100000"));
    cr_assert(e2e_await_event(&run, "damaged", "saved", 2), "%s", e2e_read(run.err));
    kill(e2e_worker("damaged", 1, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 1);
    const char *text = e2e_read(run.err);
    cr_assert(strstr(text, "'model-00002-of-00003.safetensors' has XXH3 "), "%s", text);
    e2e_check_clean(&run);
}
