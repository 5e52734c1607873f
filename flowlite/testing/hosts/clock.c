/* Preloaded into the programs of a host with a wrong time of day. It shifts the wall clock by a fixed amount and leaves
 * other clocks alone. Time namespaces cannot do this. libfaketime also shifts the monotonic clock, with which glibc's
 * timed waits then never end.
 *
 * The amount, in nanoseconds, is read from the file named at compile time. The file is mapped, so a write to it moves the
 * clock of running programs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* A later deadline is one on the wall clock, since no machine has been up for 30 years. */
#define WALL 1000000000L

static const long long none;
static const volatile long long *offset = &none;

__attribute__((constructor)) static void map_offset(void) {
    int file = open(CLOCK_FILE, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset = page;
}

static struct timespec moved(struct timespec t, long long by) {
    long long nanos = t.tv_nsec + by % 1000000000LL;
    t.tv_sec += by / 1000000000LL;
    if (nanos < 0) { nanos += 1000000000LL; t.tv_sec--; }
    if (nanos >= 1000000000LL) { nanos -= 1000000000LL; t.tv_sec++; }
    t.tv_nsec = nanos;
    return t;
}

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int result = real(clock, t);
    if (result == 0 && is_wall(clock)) *t = moved(*t, *offset);
    return result;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    out->tv_sec = t.tv_sec;
    out->tv_usec = t.tv_nsec / 1000;
    return 0;
}

int timespec_get(struct timespec *t, int base) {
    if (base != TIME_UTC) return 0;
    clock_gettime(CLOCK_REALTIME, t);
    return base;
}

/* Deadlines on the wall clock come from the moved one, and the kernel compares them with its own. */

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left) {
    static __typeof__(&clock_nanosleep) real;
    if (!real) real = REAL(clock_nanosleep);
    if (!(flags & TIMER_ABSTIME) || !is_wall(clock)) return real(clock, flags, t, left);
    struct timespec due = moved(*t, -*offset);
    return real(clock, flags, &due, left);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict t) {
    static __typeof__(&sem_timedwait) real;
    if (!real) real = REAL(sem_timedwait);
    struct timespec due = moved(*t, -*offset);
    return real(sem, &due);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict t) {
    static __typeof__(&pthread_mutex_timedlock) real;
    if (!real) real = REAL(pthread_mutex_timedlock);
    struct timespec due = moved(*t, -*offset);
    return real(mutex, &due);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict t) {
    static __typeof__(&pthread_cond_timedwait) real;
    if (!real) {
        /* Without a version this would be the condition variable of glibc 2.2, which is another one. */
        real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!real) real = REAL(pthread_cond_timedwait);
    }
    struct timespec due = t->tv_sec > WALL ? moved(*t, -*offset) : *t;
    return real(cond, mutex, &due);
}
