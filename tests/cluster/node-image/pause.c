/* Holds a pod's namespaces: sleeps, buries the pod's orphans, ends when asked. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(signal == SIGINT || signal == SIGTERM ? 0 : 1); }

static void bury(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, bury);
  for (;;) pause();
}
