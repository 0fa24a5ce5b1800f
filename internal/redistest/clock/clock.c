/*
 * A clock of its own for one redis-server, preloaded into it (LD_PRELOAD).
 *
 * It is driven by the file that REDISTEST_CLOCK names: which of two states
 * counts, then the states. Whoever writes fills the state that does not count,
 * and switches: a reader never sees half of one. The time is
 *
 *     real + offset + (real - anchor) * ppm / 1e6
 *
 * in nanoseconds. Only the wall clock is moved. Nothing here may allocate or call
 * dlsym: jemalloc asks for the time while it starts, and would hang.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000

struct state { int64_t offset, anchor, ppm; };
struct control { int64_t current; struct state states[2]; };

static volatile struct control *control;

static void map_control(void) {
    static int tried;
    if (tried) return;
    tried = 1;
    const char *path = getenv("REDISTEST_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *p = mmap(0, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p != MAP_FAILED) control = p;
}

static int64_t now(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    int64_t real = (int64_t)t.tv_sec * SECOND + t.tv_nsec;
    map_control();
    if (!control) return real;
    volatile struct state *s = &control->states[control->current];
    return real + s->offset + (int64_t)((__int128)(real - s->anchor) * s->ppm / 1000000);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, t);
    int64_t n = now();
    t->tv_sec = n / SECOND;
    t->tv_nsec = n % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    (void)zone;
    int64_t n = now();
    t->tv_sec = n / SECOND;
    t->tv_usec = n % SECOND / 1000;
    return 0;
}

time_t time(time_t *t) {
    time_t s = now() / SECOND;
    if (t) *t = s;
    return s;
}
