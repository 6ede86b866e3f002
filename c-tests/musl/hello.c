/* A program of another C library: memory, a thread, an exec of itself, the environment. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *thread(void *arg)
{
	void *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, 1 << 20);
	munmap(p, 1 << 20);
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t t;
	void *result = NULL;
	char *memory = malloc(1 << 22);
	memset(memory, 2, 1 << 22);
	free(memory);
	if (pthread_create(&t, NULL, thread, argv) != 0)
		return 2;
	pthread_join(t, &result);
	printf("%s: %d arguments, thread %d, HOME %s\n", argv[argc - 1], argc, result == argv,
	       getenv("HOME"));
	fflush(stdout);
	if (argc > 1)
		return 3;
	pid_t pid = fork();
	if (pid == 0) {
		execl(argv[0], argv[0], "again", NULL);
		_exit(4);
	}
	int status;
	waitpid(pid, &status, 0);
	return WEXITSTATUS(status) == 3 ? 0 : 1;
}
