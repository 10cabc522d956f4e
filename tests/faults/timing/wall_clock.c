/* Adds an offset to the wall clock of a process: `LD_PRELOAD` this library.

   The offset, in ns, is the first eight bytes of the file $WALL_CLOCK, and may change at any time.
   A wait until a time of the wall clock ends by that clock, as in the kernel. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define STEP (SECOND / 100)
/* Times of monotonic clocks are below. */
#define WALL_CLOCKS_MIN 500000000LL

typedef int (*clock_gettime_t)(clockid_t, struct timespec *);
typedef int (*cond_timedwait_t)(void *, void *, const struct timespec *);

static volatile const long long *offset;

__attribute__((constructor)) static void map_offset(void) {
  int file = open(getenv("WALL_CLOCK"), O_RDONLY);
  void *map = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) abort();
  offset = map;
  close(file);
}

static long long number(const struct timespec *time) {
  return time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec timespec_of(long long ns) {
  return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static int real_time(clockid_t clock, struct timespec *time) {
  static clock_gettime_t real;
  if (!real) real = (clock_gettime_t)dlsym(RTLD_NEXT, "clock_gettime");
  return real(clock, time);
}

static long long wall_clock(void) {
  struct timespec now;
  real_time(CLOCK_REALTIME, &now);
  return number(&now) + (offset ? *offset : 0);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int code = real_time(clock, time);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) *time = timespec_of(wall_clock());
  return code;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  struct timespec now = timespec_of(wall_clock());
  *time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *place) {
  time_t now = wall_clock() / SECOND;
  if (place) *place = now;
  return now;
}

int timespec_get(struct timespec *time, int base) {
  *time = timespec_of(wall_clock());
  return base;
}

static int wait(cond_timedwait_t real, void *condition, void *mutex, const struct timespec *until,
                int timed_out) {
  if (until->tv_sec < WALL_CLOCKS_MIN) return real(condition, mutex, until);
  for (;;) {
    long long left = number(until) - wall_clock();
    struct timespec now;
    real_time(CLOCK_REALTIME, &now);
    struct timespec end = timespec_of(number(&now) + (left < STEP ? left : STEP));
    int code = real(condition, mutex, &end);
    if (code != timed_out || left <= STEP) return code;
  }
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict until) {
  static cond_timedwait_t real;
  if (!real) real = (cond_timedwait_t)dlsym(RTLD_NEXT, "cnd_timedwait");
  return wait(real, condition, mutex, until, thrd_timedout);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static cond_timedwait_t real;
  if (!real) real = (cond_timedwait_t)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  return wait(real, condition, mutex, until, 110 /* ETIMEDOUT */);
}
