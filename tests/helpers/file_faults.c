/* Faults of the disk, call by call: put before the C library by LD_PRELOAD (file_faults.py).

Calls that change a file below one folder are counted, and if asked those that open or read one, of
TensorFlow, Keras and Python alike; the one with a chosen number fails. Buffered writes (fwrite)
count where they reach the kernel. Looking up names (stat, access, opendir) never fails here. After
a call that "stops" nothing reaches the disk any more, whatever the program still tries in order to
tidy up: the folder is then as a SIGKILL at that call, or a lost machine, leaves it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* The values of file_faults.Fault. */
enum { NONE, FAIL_ONCE, FAIL_FROM_HERE, STOP, TEAR };

#define MOST_FILES 4096
enum { NOT_OURS, READ, WRITTEN };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int action, error_number, counts_reads, stopped;
static long at_call, calls;
static char what_failed[PATH_MAX + 64];
static unsigned char files[MOST_FILES]; /* by file descriptor */

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* ---- what file_faults.py calls ---- */

void faults_arm(const char *folder, long call, int how, int error, int reads) {
    pthread_mutex_lock(&lock);
    root_length = strlen(folder);
    memcpy(root, folder, root_length + 1);
    at_call = call;
    action = how;
    error_number = error;
    counts_reads = reads;
    calls = stopped = 0;
    what_failed[0] = 0;
    pthread_mutex_unlock(&lock);
}

long faults_calls(void) { return calls; }

const char *faults_what_failed(void) { return what_failed; }

/* ---- which calls are ours ---- */

static int is_below(const char *path) {
    char whole[PATH_MAX];
    if (!root_length || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(whole, sizeof whole)) return 0;
        size_t length = strlen(whole);
        if (length + strlen(path) + 2 > sizeof whole) return 0;
        whole[length] = '/';
        strcpy(whole + length + 1, path);
        path = whole;
    }
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int kind_of(int file) { return file >= 0 && file < MOST_FILES ? files[file] : NOT_OURS; }

static void opened(int file, int kind) {
    if (file >= 0 && file < MOST_FILES) files[file] = kind;
}

static void path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

/* Whether this call is to fail; sets errno. */
static int fails(const char *name, const char *path) {
    int failing = 0;
    pthread_mutex_lock(&lock);
    calls++;
    if (stopped || (action == FAIL_FROM_HERE && at_call && calls > at_call)) {
        failing = 1;
    } else if (action && calls == at_call) {
        snprintf(what_failed, sizeof what_failed, "%s %s", name, path);
        stopped = action == STOP || action == TEAR;
        failing = 1;
    }
    pthread_mutex_unlock(&lock);
    if (failing) errno = stopped ? EIO : error_number;
    return failing;
}

static int fails_on_file(const char *name, int file) {
    char path[PATH_MAX];
    path_of(file, path);
    return fails(name, path);
}

/* How much of a write that fails still reaches the disk. */
static size_t torn(size_t length) {
    return action == TEAR && calls == at_call ? length / 2 : 0;
}

/* ---- opening ---- */

static int refuses_open(const char *name, const char *path, int flags) {
    int writes = flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
    if ((flags & O_DIRECTORY) || !is_below(path) || !(writes || counts_reads)) return 0;
    return fails(name, path);
}

static void note_open(int file, const char *path, int flags) {
    if (file < 0) return;
    int below = !(flags & O_DIRECTORY) && is_below(path);
    opened(file, !below ? NOT_OURS : flags & (O_WRONLY | O_RDWR) ? WRITTEN : READ);
}

#define OPEN(name)                                                   \
    int name(const char *path, int flags, ...) {                     \
        REAL(name);                                                  \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                \
        if (refuses_open("open", path, flags)) return -1;            \
        int file = real(path, flags, mode);                          \
        note_open(file, path, flags);                                \
        return file;                                                 \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                 \
    int name(int folder, const char *path, int flags, ...) {         \
        REAL(name);                                                  \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                \
        int known = folder == AT_FDCWD || path[0] == '/';            \
        if (known && refuses_open("open", path, flags)) return -1;   \
        int file = real(folder, path, flags, mode);                  \
        if (known) note_open(file, path, flags);                     \
        return file;                                                 \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                  \
    FILE *name(const char *path, const char *mode) {                 \
        REAL(name);                                                  \
        int flags = mode[0] == 'r' && !strchr(mode, '+') ? O_RDONLY : O_RDWR; \
        if (refuses_open("fopen", path, flags)) return NULL;         \
        FILE *stream = real(path, mode);                             \
        if (stream) note_open(fileno(stream), path, flags);          \
        return stream;                                               \
    }
FOPEN(fopen)
FOPEN(fopen64)

int close(int file) { /* network disks say here that a write did not succeed */
    REAL(close);
    int failed = kind_of(file) == WRITTEN && fails_on_file("close", file), error = errno;
    opened(file, NOT_OURS);
    int result = real(file);
    if (failed) errno = error;
    return failed ? -1 : result;
}

/* ---- writing ---- */

ssize_t write(int file, const void *bytes, size_t length) {
    REAL(write);
    if (kind_of(file) == WRITTEN && fails_on_file("write", file)) {
        int error = errno;
        if (torn(length)) (void)!real(file, bytes, torn(length));
        errno = error;
        return -1;
    }
    return real(file, bytes, length);
}

#define PWRITE(name, offset_type)                                    \
    ssize_t name(int file, const void *bytes, size_t length, offset_type offset) { \
        REAL(name);                                                  \
        if (kind_of(file) == WRITTEN && fails_on_file("pwrite", file)) { \
            int error = errno;                                       \
            if (torn(length)) (void)!real(file, bytes, torn(length), offset); \
            errno = error;                                           \
            return -1;                                               \
        }                                                            \
        return real(file, bytes, length, offset);                    \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *stream) {
    REAL(fwrite);
    int file = fileno(stream);
    size_t length = size * count;
    if (kind_of(file) == WRITTEN && length && __fpending(stream) + length > __fbufsize(stream) &&
        fails_on_file("fwrite", file)) {
        int error = errno;
        if (torn(length)) {
            real(bytes, 1, torn(length), stream);
            __typeof__(fflush) *flush = (__typeof__(fflush) *)dlsym(RTLD_NEXT, "fflush");
            flush(stream);
        }
        errno = error;
        return 0;
    }
    return real(bytes, size, count, stream);
}

int fflush(FILE *stream) {
    REAL(fflush);
    if (stream && kind_of(fileno(stream)) == WRITTEN && __fpending(stream) &&
        fails_on_file("fflush", fileno(stream))) {
        __fpurge(stream);
        return EOF;
    }
    return real(stream);
}

int fclose(FILE *stream) {
    REAL(fclose);
    int file = fileno(stream), failed = 0, error = 0;
    if (kind_of(file) == WRITTEN && __fpending(stream) && fails_on_file("fclose", file)) {
        error = errno;
        failed = 1;
        __fpurge(stream);
    }
    opened(file, NOT_OURS);
    int result = real(stream);
    if (failed) errno = error;
    return failed ? EOF : result;
}

/* ---- reading ---- */

/* TensorFlow 2.21 crashes where the index of a checkpoint cannot be read. It is read before that,
so that TensorFlow has it from memory. */
static int is_index(int file) {
    char path[PATH_MAX];
    path_of(file, path);
    size_t length = strlen(path);
    return length > 6 && !strcmp(path + length - 6, ".index");
}

ssize_t read(int file, void *bytes, size_t length) {
    REAL(read);
    if (counts_reads && kind_of(file) && fails_on_file("read", file)) return -1;
    return real(file, bytes, length);
}

#define PREAD(name, offset_type)                                     \
    ssize_t name(int file, void *bytes, size_t length, offset_type offset) { \
        REAL(name);                                                  \
        if (counts_reads && kind_of(file) && !is_index(file) && fails_on_file("pread", file)) \
            return -1;                                               \
        return real(file, bytes, length, offset);                    \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

/* ---- the rest ---- */

#define OF_FILE(name, parameters, arguments)                         \
    int name parameters {                                            \
        REAL(name);                                                  \
        if (kind_of(file) == WRITTEN && fails_on_file(#name, file)) return -1; \
        return real arguments;                                       \
    }
OF_FILE(fsync, (int file), (file))
OF_FILE(fdatasync, (int file), (file))
OF_FILE(ftruncate, (int file, off_t length), (file, length))
OF_FILE(ftruncate64, (int file, off64_t length), (file, length))

#define OF_PATH(name, parameters, arguments)                         \
    int name parameters {                                            \
        REAL(name);                                                  \
        if (is_below(path) && fails(#name, path)) return -1;         \
        return real arguments;                                       \
    }
OF_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(rmdir, (const char *path), (path))
OF_PATH(unlink, (const char *path), (path))
OF_PATH(remove, (const char *path), (path))
OF_PATH(rename, (const char *path, const char *to), (path, to))

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    char whole[PATH_MAX];
    whole[0] = 0;
    if (folder != AT_FDCWD && path[0] != '/') { /* as shutil.rmtree does */
        path_of(folder, whole);
        size_t length = strlen(whole);
        snprintf(whole + length, sizeof whole - length, "/%s", path);
    }
    const char *which = whole[0] ? whole : path;
    if (is_below(which) && fails("unlinkat", which)) return -1;
    return real(folder, path, flags);
}
