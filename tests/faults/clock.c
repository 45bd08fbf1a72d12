// A clock that a test can set. Preloaded into a program, it adds an offset in seconds to the time of day. The variable
// FARHAND_CLOCK names the file with the offset, an int64 in the machine's byte order. Monotonic clocks are not changed.
//
// libfaketime cannot be used: it allocates memory before workerd's allocator is ready, and workerd hangs.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FARHAND_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *seen = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (seen != MAP_FAILED) offset = seen;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *result) {
  int status = syscall(SYS_clock_gettime, clock, result);
  int is_time_of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (status == 0 && offset && is_time_of_day) result->tv_sec += *offset;
  return status;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int status = clock_gettime(CLOCK_REALTIME, &now);
  if (status == 0) *result = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return status;
}

time_t time(time_t *result) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}
