// Fails the k-th call that a process makes on files of one folder, the k-th thread that it starts, or the k-th large piece
// of memory that it asks for: for LD_PRELOAD. See scripts/fail_calls.py.
//
// Calls count that have a path in the folder, or a descriptor that was opened by one, threads that begin, and memory of
// kLarge bytes or more, of malloc and its kin or of an anonymous map. What they are is said by kind, so that a full disk
// fails what writes and a bad one what reads.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kOpen = 1, kRead = 2, kWrite = 4, kSync = 8, kName = 16, kSize = 32, kMap = 64, kThread = 128, kMemory = 256 };

// Bytes. Less is asked for everywhere, also where nothing can fail, and is the last that a machine runs out of.
static const size_t kLarge = 64 << 10;

// In memory that the parent sees, too.
struct Counts {
  atomic_long counted, failed;
  char first[512];      // what failed first
  atomic_long each[9];  // calls of each kind, counted or not
};

static struct Counts* counts;  // none: nothing is counted
static char folder[PATH_MAX];
static size_t folder_length;
static long fail_at;
static int error_number, once, kinds, halves, raised;
static atomic_char ours[65536];  // by descriptor

// From now on calls of these kinds are counted. The `at`-th fails with `error`, and, unless `only_once`, all after it do;
// 0: none. An `error` of 0 moves half of what a read or write asks for; one below 0 fails nothing and sends the process the
// signal of that number.
void begin_failing(const char* path, struct Counts* shared, long at, int error, int only_once, int which) {
  folder_length = strlen(path);
  memcpy(folder, path, folder_length + 1);
  fail_at = at, error_number = error, once = only_once, kinds = which, halves = error == 0;
  raised = error < 0 ? -error : 0;
  counts = shared;
}

static int inside(const char* path) {
  return path && strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || !path[folder_length]);
}

static int is_ours(int at, const char* path) {
  if (!counts || !path) return 0;
  if (path[0] == '/') return inside(path);
  if (at != AT_FDCWD) return at >= 0 && at < 65536 && ours[at];
  char here[PATH_MAX];
  return getcwd(here, sizeof here) && inside(here);
}

static int mine(int fd) { return counts && fd >= 0 && fd < 65536 && ours[fd]; }

// Whether this call is to fail; errno is set then.
static int fails(int kind, const char* name, const char* path) {
  if (!counts) return 0;
  atomic_fetch_add(&counts->each[__builtin_ctz((unsigned)kind)], 1);
  if (!(kinds & kind)) return 0;
  const long number = atomic_fetch_add(&counts->counted, 1) + 1;
  if (fail_at == 0 || number < fail_at || (once && number > fail_at)) return 0;
  if (atomic_fetch_add(&counts->failed, 1) == 0)
    snprintf(counts->first, sizeof counts->first, "%s %s", name, path ? path : "");
  if (raised) kill(getpid(), raised);
  errno = error_number;
  return !raised;
}

#define REAL(type, name, ...)                                                \
  static type (*real)(__VA_ARGS__);                                          \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int opened(int fd, int is) {
  if (fd >= 0 && fd < 65536) ours[fd] = (char)is;
  return fd;
}

#define OPEN_AT(NAME)                                                        \
  int NAME(int at, const char* path, int flags, ...) {                       \
    REAL(int, #NAME, int, const char*, int, ...);                            \
    va_list more;                                                            \
    va_start(more, flags);                                                   \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                            \
    const int is = is_ours(at, path);                                        \
    if (is && fails(kOpen, #NAME, path)) return -1;                          \
    return opened(real(at, path, flags, mode), is);                          \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

#define OPEN(NAME)                                                           \
  int NAME(const char* path, int flags, ...) {                               \
    REAL(int, #NAME, const char*, int, ...);                                 \
    va_list more;                                                            \
    va_start(more, flags);                                                   \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                            \
    const int is = is_ours(AT_FDCWD, path);                                  \
    if (is && fails(kOpen, #NAME, path)) return -1;                          \
    return opened(real(path, flags, mode), is);                              \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(NAME)                                                          \
  FILE* NAME(const char* path, const char* how) {                            \
    REAL(FILE*, #NAME, const char*, const char*);                            \
    const int is = is_ours(AT_FDCWD, path);                                  \
    if (is && fails(kOpen, #NAME, path)) return NULL;                        \
    FILE* made = real(path, how);                                            \
    if (made) opened(fileno(made), is);                                      \
    return made;                                                             \
  }
FOPEN(fopen)
FOPEN(fopen64)

DIR* opendir(const char* path) {
  REAL(DIR*, "opendir", const char*);
  if (is_ours(AT_FDCWD, path) && fails(kOpen, "opendir", path)) return NULL;
  return real(path);
}

int close(int fd) {
  REAL(int, "close", int);
  if (fd >= 0 && fd < 65536) ours[fd] = 0;
  return real(fd);
}

// Of bytes: with errno 0 half of them are moved, at least one.
#define MOVED(KIND, NAME, FD, COUNT, CALL)                                   \
  if (mine(FD) && fails(KIND, NAME, NULL)) {                                 \
    if (!halves) return -1;                                                  \
    COUNT = COUNT > 1 ? COUNT / 2 : COUNT;                                   \
  }                                                                          \
  return CALL

ssize_t read(int fd, void* to, size_t count) {
  REAL(ssize_t, "read", int, void*, size_t);
  MOVED(kRead, "read", fd, count, real(fd, to, count));
}
ssize_t pread(int fd, void* to, size_t count, off_t at) {
  REAL(ssize_t, "pread", int, void*, size_t, off_t);
  MOVED(kRead, "pread", fd, count, real(fd, to, count, at));
}
ssize_t pread64(int fd, void* to, size_t count, off64_t at) {
  REAL(ssize_t, "pread64", int, void*, size_t, off64_t);
  MOVED(kRead, "pread64", fd, count, real(fd, to, count, at));
}
ssize_t write(int fd, const void* from, size_t count) {
  REAL(ssize_t, "write", int, const void*, size_t);
  MOVED(kWrite, "write", fd, count, real(fd, from, count));
}
ssize_t pwrite(int fd, const void* from, size_t count, off_t at) {
  REAL(ssize_t, "pwrite", int, const void*, size_t, off_t);
  MOVED(kWrite, "pwrite", fd, count, real(fd, from, count, at));
}
ssize_t pwrite64(int fd, const void* from, size_t count, off64_t at) {
  REAL(ssize_t, "pwrite64", int, const void*, size_t, off64_t);
  MOVED(kWrite, "pwrite64", fd, count, real(fd, from, count, at));
}

#define VECTOR(KIND, NAME)                                                   \
  ssize_t NAME(int fd, const struct iovec* parts, int count) {               \
    REAL(ssize_t, #NAME, int, const struct iovec*, int);                     \
    if (mine(fd) && fails(KIND, #NAME, NULL) && !halves) return -1;          \
    return real(fd, parts, count);                                           \
  }
VECTOR(kRead, readv)
VECTOR(kWrite, writev)

#define ON_FD(KIND, NAME)                                                    \
  int NAME(int fd) {                                                         \
    REAL(int, #NAME, int);                                                   \
    if (mine(fd) && fails(KIND, #NAME, NULL)) return -1;                     \
    return real(fd);                                                         \
  }
ON_FD(kSync, fsync)
ON_FD(kSync, fdatasync)

#define RESIZE(NAME, TYPE)                                                   \
  int NAME(int fd, TYPE bytes) {                                             \
    REAL(int, #NAME, int, TYPE);                                             \
    if (mine(fd) && fails(kSize, #NAME, NULL)) return -1;                    \
    return real(fd, bytes);                                                  \
  }
RESIZE(ftruncate, off_t)
RESIZE(ftruncate64, off64_t)

#define ALLOCATE(NAME, TYPE)                                                 \
  int NAME(int fd, int mode, TYPE at, TYPE bytes) {                          \
    REAL(int, #NAME, int, int, TYPE, TYPE);                                  \
    if (mine(fd) && fails(kSize, #NAME, NULL)) return -1;                    \
    return real(fd, mode, at, bytes);                                        \
  }
ALLOCATE(fallocate, off_t)
ALLOCATE(fallocate64, off64_t)

// Returns its error.
#define POSIX_ALLOCATE(NAME, TYPE)                                           \
  int NAME(int fd, TYPE at, TYPE bytes) {                                    \
    REAL(int, #NAME, int, TYPE, TYPE);                                       \
    if (mine(fd) && fails(kSize, #NAME, NULL)) return errno;                 \
    return real(fd, at, bytes);                                              \
  }
POSIX_ALLOCATE(posix_fallocate, off_t)
POSIX_ALLOCATE(posix_fallocate64, off64_t)

#define ON_PATH(NAME)                                                        \
  int NAME(const char* path) {                                               \
    REAL(int, #NAME, const char*);                                           \
    if (is_ours(AT_FDCWD, path) && fails(kName, #NAME, path)) return -1;     \
    return real(path);                                                       \
  }
ON_PATH(unlink)
ON_PATH(rmdir)

int unlinkat(int at, const char* path, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  if (is_ours(at, path) && fails(kName, "unlinkat", path)) return -1;
  return real(at, path, flags);
}
int mkdir(const char* path, mode_t mode) {
  REAL(int, "mkdir", const char*, mode_t);
  if (is_ours(AT_FDCWD, path) && fails(kName, "mkdir", path)) return -1;
  return real(path, mode);
}
int rename(const char* from, const char* to) {
  REAL(int, "rename", const char*, const char*);
  if ((is_ours(AT_FDCWD, from) || is_ours(AT_FDCWD, to)) && fails(kName, "rename", to)) return -1;
  return real(from, to);
}
int renameat(int from_at, const char* from, int to_at, const char* to) {
  REAL(int, "renameat", int, const char*, int, const char*);
  if ((is_ours(from_at, from) || is_ours(to_at, to)) && fails(kName, "renameat", to)) return -1;
  return real(from_at, from, to_at, to);
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  REAL(int, "renameat2", int, const char*, int, const char*, unsigned);
  if ((is_ours(from_at, from) || is_ours(to_at, to)) && fails(kName, "renameat2", to)) return -1;
  return real(from_at, from, to_at, to, flags);
}
int link(const char* from, const char* to) {
  REAL(int, "link", const char*, const char*);
  if (is_ours(AT_FDCWD, to) && fails(kName, "link", to)) return -1;
  return real(from, to);
}

// Not for code that libraries make: those in torch go on without it, and crash (outcrop/nn/sparse.py asks ahead).
static int no_memory(size_t bytes, const char* name) {
  return counts && bytes >= kLarge && fails(kMemory, name, NULL);
}

// These are what glibc itself has behind the names: looking them up would ask for memory.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static size_t product(size_t count, size_t bytes) {
  size_t all;
  return __builtin_mul_overflow(count, bytes, &all) ? 0 : all;  // 0: glibc refuses it
}

void* malloc(size_t bytes) { return no_memory(bytes, "malloc") ? NULL : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) {
  return no_memory(product(count, bytes), "calloc") ? NULL : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  return no_memory(bytes, "realloc") ? NULL : __libc_realloc(old, bytes);
}
void* memalign(size_t at, size_t bytes) {
  return no_memory(bytes, "memalign") ? NULL : __libc_memalign(at, bytes);
}
void* aligned_alloc(size_t at, size_t bytes) {
  return no_memory(bytes, "aligned_alloc") ? NULL : __libc_memalign(at, bytes);
}
// Returns its error.
int posix_memalign(void** made, size_t at, size_t bytes) {
  if (at % sizeof(void*) || !at || at & (at - 1)) return EINVAL;
  if (no_memory(bytes, "posix_memalign")) return ENOMEM;
  void* found = __libc_memalign(at, bytes);
  if (!found) return ENOMEM;
  *made = found;
  return 0;
}

#define MAP(NAME, TYPE)                                                      \
  void* NAME(void* at, size_t bytes, int protection, int flags, int fd, TYPE offset) { \
    REAL(void*, #NAME, void*, size_t, int, int, int, TYPE);                  \
    if (!(flags & MAP_ANONYMOUS) && mine(fd) && fails(kMap, #NAME, NULL)) return MAP_FAILED; \
    if (flags & MAP_ANONYMOUS && !(protection & PROT_EXEC) && no_memory(bytes, #NAME)) return MAP_FAILED; \
    return real(at, bytes, protection, flags, fd, offset);                   \
  }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

// Returns its error.
int pthread_create(pthread_t* made, const pthread_attr_t* how, void* (*begin)(void*), void* given) {
  REAL(int, "pthread_create", pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (fails(kThread, "pthread_create", NULL)) return errno;
  return real(made, how, begin, given);
}
