/* Criterion has libgit2 write the differences of two texts, and starts it in every process: it then
 * parses all certificates of the machine, a quarter of a small test under AddressSanitizer. Here it
 * starts when it is first asked for a difference, when a test has failed. Linked into every test
 * program; its functions stand before the library's. */
#include <dlfcn.h>
#include <stddef.h>

int git_libgit2_init(void);
int git_libgit2_shutdown(void);
int git_diff_buffers(const void *old, size_t old_bytes, const char *old_path, const void *new,
                     size_t new_bytes, const char *new_path, const void *options,
                     void (*file)(void), void (*binary)(void), void (*hunk)(void),
                     void (*line)(void), void *ctx);

int git_libgit2_init(void) {
    return 1; /* how often it was started */
}

int git_libgit2_shutdown(void) {
    return 0;
}

int git_diff_buffers(const void *old, size_t old_bytes, const char *old_path, const void *new,
                     size_t new_bytes, const char *new_path, const void *options,
                     void (*file)(void), void (*binary)(void), void (*hunk)(void),
                     void (*line)(void), void *ctx) {
    __typeof__(&git_libgit2_init) init = NULL;
    __typeof__(&git_diff_buffers) diff = NULL;
    *(void **)&init = dlsym(RTLD_NEXT, "git_libgit2_init");
    *(void **)&diff = dlsym(RTLD_NEXT, "git_diff_buffers");
    if (init == NULL || diff == NULL || init() < 0) {
        return -1;
    }
    return diff(old, old_bytes, old_path, new, new_bytes, new_path, options, file, binary, hunk,
                line, ctx);
}
