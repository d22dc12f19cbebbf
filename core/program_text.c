/* Program text, both ways. */
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/program_parts.h"

static const char *const op_text[INSTR_N_OPCODES] = {
    [INSTR_FETCH_ACT] = "<a", [INSTR_FETCH_GRAD] = "<g",  [INSTR_FORWARD] = "F",
    [INSTR_RECOMPUTE] = "C",  [INSTR_BACKWARD] = "B",     [INSTR_BACKWARD_I] = "I",
    [INSTR_BACKWARD_W] = "W", [INSTR_PUBLISH_ACT] = ">a", [INSTR_PUBLISH_GRAD] = ">g",
    [INSTR_REDUCE] = "R",     [INSTR_UPDATE] = "U",
};

/* The other stage of a fetch or publication that names none; -1 for a computation. */
static int32_t neighbour(Opcode op, int32_t stage) {
    if (op == INSTR_FETCH_ACT || op == INSTR_PUBLISH_GRAD)
        return stage - 1;
    return op == INSTR_FETCH_GRAD || op == INSTR_PUBLISH_ACT ? stage + 1 : -1;
}

const char *program_instr_text(const Instr *instr, int32_t stage, char *buf, size_t buf_bytes) {
    char front[16] = "";
    char micro[16] = "";
    char back[16] = "";
    if (instr->stage != stage)
        snprintf(front, sizeof front, "%d", instr->stage);
    if (instr->micro >= 0)
        snprintf(micro, sizeof micro, "%d", instr->micro);
    if (instr->peer != neighbour(instr->op, instr->stage))
        snprintf(back, sizeof back, "@%d", instr->peer);
    snprintf(buf, buf_bytes, "%s%s%s%s", front, op_text[instr->op], micro, back);
    return buf;
}

int program_format(const Program *program, int32_t stage, Buf *out_text) {
    int32_t only = program_only_stage(program);
    int32_t bare = only == stage ? stage : -1;
    for (int32_t i = 0; i < program->n_instrs; i++) {
        char token[PROGRAM_TOKEN_BYTES];
        program_instr_text(&program->instrs[i], bare, token, sizeof token);
        if (i > 0)
            TRY(buf_text(out_text, " "));
        TRY(buf_text(out_text, token));
    }
    return 0;
}

typedef struct Scanner {
    const char *what, *at, *end;
    int32_t line;
    const char *line_start;
} Scanner;

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* To the next token: false at the end of the text. */
static bool next_token(Scanner *scanner, const char **out_token, size_t *out_bytes) {
    bool comment = false;
    for (; scanner->at < scanner->end; scanner->at++) {
        char c = *scanner->at;
        if (c == '\n') {
            comment = false;
            scanner->line++;
            scanner->line_start = scanner->at + 1;
        } else if (c == '#') {
            comment = true;
        } else if (!comment && !is_space(c)) {
            break;
        }
    }
    const char *token = scanner->at;
    while (scanner->at < scanner->end && !is_space(*scanner->at) && *scanner->at != '#')
        scanner->at++;
    *out_token = token;
    *out_bytes = (size_t)(scanner->at - token);
    return *out_bytes > 0;
}

/* A number without surplus zeros, at most `max`; -1 when there is none. */
static int32_t scan_number(const char **at, const char *end, int32_t max) {
    int32_t value = 0;
    const char *first = *at;
    while (*at < end && **at >= '0' && **at <= '9') {
        value = value * 10 + (**at - '0');
        (*at)++;
        if (value > max || (first[0] == '0' && *at - first > 1))
            return -1;
    }
    return *at > first ? value : -1;
}

static int32_t scan_op(const char **at, const char *end) {
    for (int32_t op = 0; op < INSTR_N_OPCODES; op++) {
        size_t length = strlen(op_text[op]);
        if ((size_t)(end - *at) >= length && memcmp(*at, op_text[op], length) == 0) {
            *at += length;
            return op;
        }
    }
    return -1;
}

/* One instruction, or what is wrong with it. */
static const char *scan_instr(const char *at, const char *end, int32_t stage, Instr *out_instr) {
    if (*at >= '0' && *at <= '9') {
        stage = scan_number(&at, end, STAGE_MAX - 1);
        if (stage < 0)
            return "the stage in front is not a number from 0 to 4095";
    }
    int32_t op = scan_op(&at, end);
    if (op < 0)
        return "not an instruction (expected <a <g F C B I W >a >g with a micro-batch, R or U)";
    int32_t micro = -1;
    if (op != INSTR_REDUCE && op != INSTR_UPDATE) {
        micro = scan_number(&at, end, PROGRAM_MAX_MICRO - 1);
        if (micro < 0)
            return "expected a micro-batch from 0 to 65535 behind the letter";
    }
    int32_t peer = neighbour((Opcode)op, stage);
    bool moves = program_queue((Opcode)op) != QUEUE_COMPUTE;
    bool named = moves && at < end && *at == '@';
    if (named) {
        at++;
        peer = scan_number(&at, end, STAGE_MAX - 1);
    }
    if (at < end || (named && peer < 0))
        return moves ? "expected nothing, or @ and a stage, behind the micro-batch"
                     : "expected a blank behind it";
    *out_instr = (Instr){.op = (Opcode)op, .stage = stage, .micro = micro, .peer = peer};
    return NULL;
}

static int token_error(const Scanner *scanner, const char *token, size_t bytes, const char *why) {
    char shown[32];
    size_t n = bytes < sizeof shown - 4 ? bytes : sizeof shown - 4;
    for (size_t i = 0; i < n; i++)
        shown[i] = (char)(token[i] > ' ' && token[i] < 0x7F ? token[i] : '?');
    memcpy(shown + n, n < bytes ? "..." : "", n < bytes ? 4 : 1);
    return err_set(ERR_FORMAT, "%s:%d:%td: '%s': %s", scanner->what, scanner->line,
                   token - scanner->line_start + 1, shown, why);
}

static int parse_tokens(Scanner *scanner, int32_t stage, Program *program) {
    const char *token;
    size_t bytes;
    while (next_token(scanner, &token, &bytes)) {
        Instr instr;
        const char *why = scan_instr(token, token + bytes, stage, &instr);
        if (why)
            return token_error(scanner, token, bytes, why);
        if (program_add(program, instr.op, instr.stage, instr.micro, instr.peer) < 0) {
            ErrNote note;
            err_copy(&note);
            if (note.code != ERR_ARGUMENT)
                return note.code;
            return token_error(scanner, token, bytes, note.text);
        }
    }
    return 0;
}

int program_parse(const char *what, const char *text, size_t bytes, int32_t stage,
                  Program *out_program) {
    Scanner scanner = {what, text, text + bytes, 1, text};
    Program program;
    program_init(&program);
    int rc = parse_tokens(&scanner, stage, &program);
    if (rc < 0)
        program_done(&program);
    else
        *out_program = program;
    return rc;
}
