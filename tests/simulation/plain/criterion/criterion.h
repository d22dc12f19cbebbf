/* As much of Criterion's interface as threaded tests use, on plain functions: Criterion itself does
 * not run under ThreadSanitizer. A test file that is compiled with this folder in front of the
 * system's adds its tests to tsan_main, as "suite/name". A check that fails ends the process. */
#ifndef FUNCPIPE_TESTS_PLAIN_CRITERION_H
#define FUNCPIPE_TESTS_PLAIN_CRITERION_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void plain_add(const char *name, void (*run)(void));
void plain_fail(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((noreturn));
void plain_skip(const char *format, ...) __attribute__((noreturn));

#define Test(suite, name)                                                                          \
    static void plain_##suite##_##name(void);                                                      \
    __attribute__((constructor)) static void plain_add_##suite##_##name(void) {                    \
        plain_add(#suite "/" #name, plain_##suite##_##name);                                       \
    }                                                                                              \
    static void plain_##suite##_##name(void)

#define PLAIN_CHECK(condition, ...)                                                                \
    do {                                                                                           \
        if (!(condition))                                                                          \
            plain_fail(__FILE__, __LINE__, #condition, "" __VA_ARGS__);                            \
    } while (0)

#define cr_assert(condition, ...) PLAIN_CHECK(condition, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_CHECK((a) == (b), __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_CHECK((a) >= (b), __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK((a) != NULL, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_CHECK(strcmp(a, b) == 0, __VA_ARGS__)
#define cr_expect(condition, ...) PLAIN_CHECK(condition, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN_CHECK((a) == (b), __VA_ARGS__)
#define cr_skip(...) plain_skip(__VA_ARGS__)
#define cr_log_info(...) (printf(__VA_ARGS__), putchar('\n'))

#endif
