/* One training step (forward, backward, update) in one process, against PyTorch with the same
 * model, batch and threads; torch_step.py is the other side and says how it is set up.
 *
 *     step/mlp/1 step/mlp/2            784-1024-1024-10, batch 64; goal 1.2
 *     step/cnn/1 step/cnn/2            the zoo's, batch 64
 *     step/tiny_gpt/1 step/tiny_gpt/2  the zoo's, batch 8
 *
 * The figure is PyTorch's time over ours. Ours is a whole worker process over the file relay: data
 * read from an array in memory, gradient norms computed and published. The sides take turns: a
 * worker runs its steps, then PyTorch as many. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/err.h"
#include "core/file.h"
#include "core/rng.h"
#include "tests/bench/bench.h"
#include "tests/bench/work.h"

enum { N_WARM = 5, N_STEPS = 40, N_ROUNDS = 5, MAX_STEPS = 256, N_BATCHES = 4 };
enum { TEXT_BYTES = 1 << 16, HEADER_BYTES = 128 };

typedef struct StepModel {
    const char *name;
    int32_t batch;
    double goal;
} StepModel;

static const StepModel models[] = {{"mlp", 64, 1.2}, {"cnn", 64, 1.0}, {"tiny_gpt", 8, 1.0}};

/* ---- PyTorch ---- */

typedef struct Torch {
    pid_t pid;
    FILE *to, *from;
    char setup[512];
} Torch;

static void torch_open(Torch *torch, const char *model, int threads) {
    int in[2];
    int out[2];
    char number[16];
    snprintf(number, sizeof number, "%d", threads);
    if (pipe(in) < 0 || pipe(out) < 0)
        bench_must(err_errno(ERR_IO, errno, "pipe"), "starting PyTorch");
    torch->pid = fork();
    if (torch->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int fd = 3; fd < 32; fd++)
            close(fd);
        setenv("OMP_NUM_THREADS", number, 1);
        execl("/usr/bin/python3", "/usr/bin/python3",
              FUNCPIPE_SOURCE_DIR "/tests/bench/torch_step.py", model, number, NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    torch->to = fdopen(in[1], "w");
    torch->from = fdopen(out[0], "r");
    if (torch->pid < 0 || !torch->to || !torch->from ||
        !fgets(torch->setup, sizeof torch->setup, torch->from))
        bench_must(err_set(ERR_UNSUPPORTED, "PyTorch cannot be measured against"), model);
    torch->setup[strcspn(torch->setup, "\n")] = '\0';
}

static void torch_close(Torch *torch) {
    fclose(torch->to);
    fclose(torch->from);
    waitpid(torch->pid, NULL, 0);
}

/* Median ms of a step; adds its processor time. */
static double torch_measure(Torch *torch, int n_steps) {
    static char line[TEXT_BYTES];
    double ms[MAX_STEPS];
    int n = 0;
    fprintf(torch->to, "%d\n", n_steps);
    fflush(torch->to);
    cJSON *root = fgets(line, sizeof line, torch->from) ? cJSON_Parse(line) : NULL;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "ms")) {
        if (n < MAX_STEPS)
            ms[n++] = item->valuedouble;
    }
    if (n == 0)
        bench_must(err_set(ERR_FORMAT, "PyTorch's side gave no times"), "measuring");
    cJSON_Delete(root);
    return bench_median(ms, n);
}

/* ---- data in memory ---- */

static void write_array(const char *path, const char *type, const Shape *shape, int64_t samples,
                        const void *data, size_t bytes) {
    char dims[64] = "";
    char header[HEADER_BYTES];
    Buf text;
    buf_init(&text, 0);
    for (int i = 0; i < shape->n_dims; i++) {
        size_t at = strlen(dims);
        snprintf(dims + at, sizeof dims - at, " %lld,", (long long)shape->dims[i]);
    }
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(header + 10, sizeof header - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%lld,%s), }", type,
                     (long long)samples, dims);
    header[10 + n] = ' ';
    header[HEADER_BYTES - 1] = '\n';
    bench_must(buf_add(&text, header, sizeof header), "an array");
    bench_must(buf_add(&text, data, bytes), "an array");
    bench_must(file_write(path, text.data, text.bytes), "writing an array");
    buf_done(&text);
}

/* Arrays of noise and labels instead of generated data, which costs time in every step. */
static void use_arrays(Work *work, int64_t samples) {
    DataSpec *data = &work->order.train;
    const Shape *shape = &data->shape;
    size_t n = (size_t)(samples * shape_elements(shape));
    float *inputs = calloc(n, sizeof *inputs);
    int32_t *targets = calloc((size_t)samples, sizeof *targets);
    if (!inputs || !targets)
        bench_must(err_set(ERR_MEMORY, "%zu numbers", n), "the data");
    rng_fill_normal(1, "inputs", 1.0F, inputs, n);
    for (int64_t i = 0; i < samples; i++)
        targets[i] = (int32_t)(i * 7 % data->classes);
    data->kind = DATA_NPY;
    snprintf(data->input_path, sizeof data->input_path, "%s/inputs.npy", work->folder);
    snprintf(data->target_path, sizeof data->target_path, "%s/targets.npy", work->folder);
    write_array(data->input_path, "<f4", shape, samples, inputs, n * sizeof *inputs);
    write_array(data->target_path, "<i4", &(Shape){0}, samples, targets,
                (size_t)samples * sizeof *targets);
    free(inputs);
    free(targets);
}

static void use_tokens(Work *work, int64_t samples) {
    DataSpec *data = &work->order.train;
    size_t n = (size_t)(samples * data->context) + 1;
    uint16_t *tokens = calloc(n, sizeof *tokens);
    if (!tokens)
        bench_must(err_set(ERR_MEMORY, "%zu tokens", n), "the data");
    for (size_t i = 0; i < n; i++)
        tokens[i] =
            (uint16_t)(rng_philox((uint32_t[]){(uint32_t)i, 0, 0, 0}, (uint32_t[]){1, 0}).v[0] %
                       (uint32_t)data->vocab);
    data->kind = DATA_TOKENS;
    data->generated_tokens = false;
    data->token_dtype = DTYPE_U16;
    snprintf(data->input_path, sizeof data->input_path, "%s/tokens.bin", work->folder);
    bench_must(file_write(data->input_path, tokens, n * sizeof *tokens), "writing tokens");
    free(tokens);
}

/* ---- both ---- */

static double work_measure(Work *work) {
    double ms[MAX_STEPS];
    work_run(work);
    int n = work_step_ms(work, N_WARM, ms, MAX_STEPS);
    return bench_median(ms, n);
}

static void compare(const StepModel *model, int threads, const char *name) {
    const int64_t samples = N_BATCHES * model->batch;
    Work work;
    Torch torch = {0};
    BenchRounds rounds = {0};
    double ms[2][BENCH_MAX_ROUNDS];
    work_init_zoo(&work, model->name, NULL, samples);
    if (work.order.train.generated_tokens)
        use_tokens(&work, samples);
    else
        use_arrays(&work, samples);
    work_batch(&work, model->batch, model->batch);
    work_steps(&work, N_WARM + N_STEPS);
    work.order.plan.threads = threads;
    torch_open(&torch, model->name, threads);
    while (!bench_enough(&rounds, N_ROUNDS)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        ms[0][rounds.n] = work_measure(&work);
        ms[1][rounds.n] = torch_measure(&torch, N_STEPS);
        bench_round(&rounds, ms[1][rounds.n] / ms[0][rounds.n], bench_noise_end(&noise));
    }
    double ratio = bench_conclude(&rounds, name);
    bench_note("%d thread%s: ours %.2f ms, PyTorch %.2f ms; %s", threads, threads > 1 ? "s" : "",
               bench_median(ms[0], rounds.n), bench_median(ms[1], rounds.n), torch.setup);
    bench_print(name, ratio, 2, "x", true, model->goal);
    torch_close(&torch);
    work_done(&work);
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        for (int threads = 1; threads <= 2; threads++) {
            char name[64];
            snprintf(name, sizeof name, "step/%s/%d", models[i].name, threads);
            if (bench_wanted(name))
                compare(&models[i], threads, name);
        }
    }
    return bench_end();
}
