/*
 * Proves: a program may close what descriptors it finds, and be given their numbers for files
 * of its own: gets and puts still reach the peer, and no file.
 */
#include "peers.h"

#define BYTES 4096

int main(int argc, char **argv)
{
	no_longer_than(60);
	int ready[2];
	if (pipe(ready) != 0)
		return 2;
	pid_t child = fork();
	if (!child) {
		char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(memory, 'p', BYTES);
		if (write(ready[1], &memory, sizeof memory) != sizeof memory)
			_exit(1);
		pause();
		_exit(0);
	}
	uint64_t from = 0;
	IS(sizeof from, read(ready[0], &from, sizeof from));
	regall_peer *peer = NULL;
	IS(0, regall_peer_open(child, 0, 0, &peer));
	char got[BYTES] = { 0 };
	IS(0, regall_get(peer, got, from, 8, NULL));
	HOLDS(got[0] == 'p' && got[7] == 'p');

	/* All of them are of one file: an ordinary one, or /dev/zero, which can be read anywhere. */
	char name[] = "/tmp/regall-descriptors-XXXXXX";
	bool zeroes = argc > 1 && strcmp(argv[1], "zero") == 0;
	int file = zeroes ? open("/dev/zero", O_RDWR) : mkstemp(name);
	char fs[BYTES];
	memset(fs, zeroes ? 0 : 'f', sizeof fs);
	IS(BYTES, pwrite(file, fs, BYTES, 0));
	for (int fd = 3; fd < 1024; fd++)
		if (fd != file)
			dup2(file, fd);
	for (int round = 0; round < 100; round++) {
		pause_us(round < 50 ? 100 : 0);
		for (size_t n = 1; n <= BYTES; n *= 8) {
			memset(got, 0, sizeof got);
			IS(0, regall_get(peer, got, from, n, NULL));
			for (size_t i = 0; i < n; i++)
				if (got[i] != 'p') {
					say("round %d, %zu bytes: %c", round, n, got[i]);
					wrong++;
					break;
				}
		}
		IS(0, regall_put(peer, got, from, 1, NULL));
	}
	IS(0, regall_peer_close(peer));
	/* Nothing was written to the file, and closing the peer closed nothing of ours. */
	HOLDS(pread(file, got, 1, 0) == 1 && got[0] == fs[0]);
	for (int fd = 3; fd < 1024; fd++)
		HOLDS(fcntl(fd, F_GETFD) >= 0);
	if (!zeroes)
		unlink(name);
	kill(child, SIGKILL);
	return wrong != 0;
}
