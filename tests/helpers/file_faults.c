/* Faults of the disk, call by call: put before the C library by LD_PRELOAD (test_file_faults.py).

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
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The values of test_file_faults.py. */
enum { FAIL_ONCE = 1, FAIL_FROM_HERE, STOP, TEAR };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], what_failed[2 * PATH_MAX + 64];
static int action, error_number, counts_reads, stopped;
static long at_call, calls;

/* Lets the call of that number, from 1, below the folder fail; of no folder none does. */
void faults_arm(const char *folder, long call, int how, int error, int reads) {
    pthread_mutex_lock(&lock);
    strcpy(root, folder);
    at_call = call;
    action = how;
    error_number = error;
    counts_reads = reads;
    calls = stopped = 0;
    if (root[0]) what_failed[0] = 0;
    pthread_mutex_unlock(&lock);
}

const char *faults_what_failed(void) { return what_failed; }

/* Whether a call on a path, below an open folder if it is relative, or on an open file is to fail;
 * sets errno. */
static int fails(const char *name, int file, const char *path) {
    char link[64], whole[2 * PATH_MAX];
    int failing = 0, error = errno;
    if (!root[0]) return 0;
    if (!path || path[0] != '/') {
        const char *format = file == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d";
        snprintf(link, sizeof link, format, file);
        ssize_t length = readlink(link, whole, PATH_MAX);
        if (length < 0) length = 0;
        snprintf(whole + length, PATH_MAX, "%s%s", path ? "/" : "", path ? path : "");
        path = whole;
    }
    size_t length = strlen(root);
    if (!strncmp(path, root, length) && (path[length] == '/' || !path[length])) {
        pthread_mutex_lock(&lock);
        calls++;
        failing = stopped || calls == at_call || (action == FAIL_FROM_HERE && calls > at_call);
        if (calls == at_call) {
            snprintf(what_failed, sizeof what_failed, "%s %s", name, path);
            stopped = action == STOP || action == TEAR;
        }
        pthread_mutex_unlock(&lock);
    }
    errno = !failing ? error : stopped ? EIO : error_number;
    return failing;
}

/* The same of an open file, if it is one that can be written to. */
static int fails_written(const char *name, int file) {
    int error = errno, flags = root[0] ? fcntl(file, F_GETFL) : 0;
    errno = error;
    return (flags & O_ACCMODE) != O_RDONLY && fails(name, file, NULL);
}

/* TensorFlow 2.21 crashes where the index of a checkpoint cannot be read. It is read before that,
 * so that TensorFlow has it from memory. */
static int fails_read(const char *name, int file) {
    char link[64], path[PATH_MAX];
    if (!root[0] || !counts_reads) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path);
    int is_index = length > 6 && !memcmp(path + length - 6, ".index", 6);
    return !(is_index && name[0] == 'p') && fails(name, file, NULL);
}

static int fails_open(int folder, const char *path, int flags) {
    int writes = flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
    return !(flags & O_DIRECTORY) && (writes || counts_reads) && fails("open", folder, path);
}

/* A call in the place of the C library's: what it does where it fails comes last. */
#define WRAP(type, name, parameters, arguments, failing, ...) \
    type name parameters { \
        static __typeof__(name) *real; \
        if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
        if (failing) __VA_ARGS__ \
        return real arguments; \
    }
#define ON_PATH(name, parameters, arguments, folder) \
    WRAP(int, name, parameters, arguments, fails(#name, folder, path), { return -1; })
#define ON_FILE(name, type, parameters, arguments, failing) \
    WRAP(type, name, parameters, arguments, failing(#name, file), { return -1; })
#define BOTH(OF, name, ...) OF(name, __VA_ARGS__) OF(name##64, __VA_ARGS__)

#define OPEN(name, parameters, arguments, folder) \
    int name parameters { \
        static __typeof__(name) *real; \
        if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return fails_open(folder, path, flags) ? -1 : real arguments; \
    }
BOTH(OPEN, open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
BOTH(OPEN, openat, (int file, const char *path, int flags, ...), (file, path, flags, mode), file)

static int flags_of(const char *mode) {
    return mode[0] == 'r' && !strchr(mode, '+') ? O_RDONLY : O_RDWR;
}

#define FOPEN(name) \
    WRAP(FILE *, name, (const char *path, const char *mode), (path, mode), \
         fails_open(AT_FDCWD, path, flags_of(mode)), { return NULL; })
FOPEN(fopen)
FOPEN(fopen64)

/* Half of a write that is torn reaches the disk. */
#define WRITE(name, parameters, arguments, half) \
    WRAP(ssize_t, name, parameters, arguments, fails_written(#name, file), { \
        int error = errno; \
        if (action == TEAR && calls == at_call) (void)!real half; \
        errno = error; \
        return -1; \
    })
WRITE(write, (int file, const void *from, size_t size), (file, from, size), (file, from, size / 2))
BOTH(WRITE, pwrite, (int file, const void *from, size_t size, off_t place),
     (file, from, size, place), (file, from, size / 2, place))

static int fails_pending(const char *name, FILE *stream, size_t more) {
    return stream && __fpending(stream) + more > (more ? __fbufsize(stream) : 0) &&
           fails_written(name, fileno(stream));
}

WRAP(size_t, fwrite, (const void *from, size_t size, size_t count, FILE *stream),
     (from, size, count, stream), fails_pending("fwrite", stream, size * count), {
         int error = errno;
         if (action == TEAR && calls == at_call) {
             real(from, 1, size * count / 2, stream);
             ((__typeof__(fflush) *)dlsym(RTLD_NEXT, "fflush"))(stream);
         }
         errno = error;
         return 0;
     })
WRAP(int, fflush, (FILE *stream), (stream), fails_pending("fflush", stream, 0), {
    __fpurge(stream);
    return EOF;
})

/* Network disks say here that a write did not succeed. */
#define CLOSE(name, parameters, opened, failing, before) \
    WRAP(int, name, parameters, (opened), failing, { \
        int error = errno; \
        before; \
        real(opened); \
        errno = error; \
        return -1; \
    })
CLOSE(fclose, (FILE *stream), stream, fails_pending("fclose", stream, 0), __fpurge(stream))
CLOSE(close, (int file), file, fails_written("close", file), )
ON_FILE(fsync, int, (int file), (file), fails_written)
ON_FILE(fdatasync, int, (int file), (file), fails_written)
BOTH(ON_FILE, ftruncate, int, (int file, off_t length), (file, length), fails_written)

ON_FILE(read, ssize_t, (int file, void *to, size_t size), (file, to, size), fails_read)
BOTH(ON_FILE, pread, ssize_t, (int file, void *to, size_t size, off_t place),
     (file, to, size, place), fails_read)

ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD)
ON_PATH(rmdir, (const char *path), (path), AT_FDCWD)
ON_PATH(unlink, (const char *path), (path), AT_FDCWD)
ON_PATH(remove, (const char *path), (path), AT_FDCWD)
ON_PATH(rename, (const char *path, const char *to), (path, to), AT_FDCWD)
ON_PATH(unlinkat, (int file, const char *path, int flags), (file, path, flags), file)
