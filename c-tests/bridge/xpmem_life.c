/*
 * Proves: through XPMEM a get or put is the peer's memory or an error, whatever becomes of the
 * peer, of the descriptors of the device and of this program; never a signal, never memory of
 * our own. And the shim ends nothing that the program itself has of the driver.
 *
 *   xpmem_life SCENARIO
 *
 * Says what is not as it should be; exit status 0 if nothing.
 */
#include <glob.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#include "peers.h"
#include "xpmem_abi.h"

#pragma weak regall_box_fd

#define BYTES (16 * PAGE)
#define TRAPS 64

/* What the two have in common; the owner's memory can be attached by the stand-in, too. */
struct shared {
	uint64_t memory;
	volatile int ready;
	volatile bool go_on;
	volatile bool change;
	volatile xpmem_segid_t segment;
};
static struct shared *shared;
static pid_t owner;
static regall_peer *peer;
static char buffer[BYTES];

static void own(void)
{
	/* The other one may be another program by the time it ends. */
	NEED(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	int file = memfd_create("life", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(file >= 0 && ftruncate(file, BYTES) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(p != MAP_FAILED);
	memset(p, 'o', BYTES);
	shared->memory = (uint64_t)(uintptr_t)p;
	shared->ready = 1;
	while (!shared->go_on) {
		if (shared->change) {
			setfsgid(1);
			setfsgid(getegid());
			shared->change = false;
		}
		pause_us(1000);
	}
	execl("/proc/self/exe", "xpmem_life", "nothing", (char *)NULL);
	_exit(1);
}

static void start_owner(void)
{
	owner = fork();
	NEED(owner >= 0);
	if (owner == 0)
		own();
	while (!shared->ready)
		pause_us(1000);
	IS(0, regall_peer_open(owner, 0, 0, &peer));
}

static int get(void)
{
	memset(buffer, 0, BYTES);
	return regall_get(peer, buffer, shared->memory, BYTES, NULL);
}

/* Has it attached, by XPMEM and nothing else. */
static void attach(void)
{
	struct regall_done done = { 0 };
	IS(0, regall_get(peer, buffer, shared->memory, BYTES, &done));
	IS(REGALL_COPY_XPMEM, done.mechanism);
	HOLDS(all_are(buffer, BYTES, 'o'));
}

static void killed(void)
{
	attach();
	NEED(kill(owner, SIGKILL) == 0 && waitpid(owner, NULL, 0) == owner);
	pause_us(300000);
	IS(-ESRCH, get());
	IS(-ESRCH, regall_put(peer, buffer, shared->memory, BYTES, NULL));
	owner = 0;
}

static void executes(void)
{
	attach();
	shared->go_on = true;
	int status;
	NEED(waitpid(owner, &status, 0) == owner);
	IS(0, status);
	pause_us(300000);
	IS(-ESRCH, get());
	owner = 0;
}

static void stopped(void)
{
	attach();
	NEED(kill(owner, SIGSTOP) == 0);
	pause_us(10000);
	IS(0, get());
	HOLDS(all_are(buffer, BYTES, 'o'));
	NEED(kill(owner, SIGCONT) == 0);
}

/* All descriptors but the three first ones are closed; memory is mapped where the driver has
 * had its own. */
static void closes(void)
{
	char *traps[TRAPS];
	for (int round = 0; round < 3; round++) {
		attach();
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
		for (int i = 0; round < 2 && i < TRAPS; i++) {
			traps[i] = anon(BYTES / PAGE);
			memset(traps[i], 'r', BYTES);
		}
		IS(0, get());
		HOLDS(all_are(buffer, BYTES, 'o'));
		memset(buffer, 'o', BYTES);
		IS(0, regall_put(peer, buffer, shared->memory, BYTES, NULL));
		for (int i = 0; round < 2 && i < TRAPS; i++) {
			HOLDS(all_are(traps[i], BYTES, 'r'));
			munmap(traps[i], BYTES);
		}
	}
}

/* A descriptor of the program's own is closed: the driver ends what is ours, too. */
static void closes_its_own(void)
{
	attach();
	int fd = open(XPMEM_DEVICE, O_RDWR | O_CLOEXEC);
	NEED(fd >= 0);
	close(fd);
	char *trap = anon(BYTES / PAGE);
	memset(trap, 'r', BYTES);
	attach();
	IS(0, regall_put(peer, buffer, shared->memory, BYTES, NULL));
	HOLDS(all_are(trap, BYTES, 'r'));
}

static void execs(void)
{
	attach();
	execl("/no/such/program", "program", (char *)NULL);
	attach();
	pid_t child = vfork();
	if (child == 0) {
		execl("/proc/self/exe", "xpmem_life", "nothing", (char *)NULL);
		_exit(1);
	}
	int status;
	NEED(child > 0 && waitpid(child, &status, 0) == child);
	IS(0, status);
	attach();
	if (!wrong)
		execl("/proc/self/exe", "xpmem_life", "nothing", (char *)NULL);
	wrong++;
}

/* The start of the helper ends no segment of the program's: another process can get it. */
static void own_segments(void)
{
	char *p = anon(1);
	int fd = open(XPMEM_DEVICE, O_RDWR | O_CLOEXEC);
	struct xpmem_cmd_make make = { (uint64_t)(uintptr_t)p, PAGE, XPMEM_PERMIT_MODE, 0600, 0 };
	NEED(fd >= 0 && ioctl(fd, XPMEM_CMD_MAKE, &make) == 0);
	EXPECT(regall_box_fd() >= 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int other = open(XPMEM_DEVICE, O_RDWR | O_CLOEXEC);
		struct xpmem_cmd_get get = { make.segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, 0, 0 };
		EXPECT(ioctl(other, XPMEM_CMD_GET, &get) == 0);
		_exit(wrong != 0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	IS(0, status);
	struct xpmem_cmd_remove remove = { make.segid };
	EXPECT(ioctl(fd, XPMEM_CMD_REMOVE, &remove) == 0);
}

static bool can_get(int device, xpmem_segid_t segment)
{
	struct xpmem_cmd_get get = { segment, XPMEM_RDWR, XPMEM_PERMIT_MODE, 0, 0 };
	return segment != 0 && ioctl(device, XPMEM_CMD_GET, &get) == 0;
}

/* Overwrites the number of the owner's segment in its directory, and keeps it. */
static void take_number(int device)
{
	char pattern[64];
	glob_t found;
	snprintf(pattern, sizeof pattern, "/dev/shm/regall-*/%d.*[0-9]", (int)owner);
	NEED(glob(pattern, 0, NULL, &found) == 0);
	int file = open(found.gl_pathv[0], O_RDWR | O_CLOEXEC);
	NEED(file >= 0);
	xpmem_segid_t word;
	for (off_t at = 0; pread(file, &word, sizeof word, at) == sizeof word; at += sizeof word)
		if (can_get(device, word)) {
			shared->segment = word;
			word = 0;
			NEED(pwrite(file, &word, sizeof word, at) == sizeof word);
			return;
		}
}

static void is_gone(int device)
{
	EXPECT(!can_get(device, shared->segment));
}

/* In a process of its own: what it has of the driver's goes with it. */
static void apart(void (*run)(int device))
{
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		run(open(XPMEM_DEVICE, O_RDWR | O_CLOEXEC));
		_exit(wrong != 0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	IS(0, status);
}

/*
 * Who has changed its credentials lends nothing any more, though it has changed back, and
 * whatever a peer has written into its directory.
 */
static void changes(void)
{
	attach();
	apart(take_number);
	EXPECT(shared->segment != 0);
	shared->change = true;
	while (shared->change)
		pause_us(1000);
	EXPECT(get() != 0);
	apart(is_gone);
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "killed", killed },	{ "executes", executes }, { "stopped", stopped }, { "closes", closes },
	{ "own", closes_its_own }, { "execs", execs },	  { "segments", own_segments },
	{ "changes", changes },
};

int main(int argc, char **argv)
{
	NEED(argc > 1);
	if (strcmp(argv[1], "nothing") == 0)
		return 0;
	alarm(60);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	if (strcmp(argv[1], "segments") != 0)
		start_owner();
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
		if (strcmp(scenarios[i].name, argv[1]) == 0) {
			scenarios[i].run();
			if (owner > 0)
				NEED(kill(owner, SIGKILL) == 0 && waitpid(owner, NULL, 0) == owner);
			return wrong != 0;
		}
	return 98;
}
