/*
 * What the kernel keeps with a mapping, as operations of differ.c: protection keys, NUMA
 * policies and seals. What is sealed stays until the process ends, so it is in a lane of its
 * own, the vault. A part of differ.c, in a file of its own.
 */
#ifndef REGALL_MARKED_H
#define REGALL_MARKED_H

#include <linux/mempolicy.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef SEGV_PKUERR
#define SEGV_PKUERR 4
#endif

static bool have_policies, have_seals;

/* -- keys ------------------------------------------------------------------------------ */

static void protect_with_key(struct lane *l, size_t from, size_t n, int prot, bool keyed)
{
	describe("pkey_mprotect %c %zu+%zu prot %d key %d", name_of(l), from, n, prot, keyed);
	size_t good = run(l, from, n, is_mapped);
	as_wanted("pkey_mprotect", good == n ? 0 : ENOMEM, pkey_mprotect(at(l, from), n * PAGE, prot, keyed ? the_key : 0));
	cut_out(l, from, good);
	for (size_t i = from; i < from + good; i++) {
		l->page[i].prot = (unsigned char)prot;
		l->page[i].key = keyed;
	}
	look_over(l, from, good);
}

static void op_key(void)
{
	struct lane *l = some_lane(SLOT | ZONE | BREAK);
	size_t n, from = some_range(l, &n);
	int prot = some_prot();
	bool keyed = !once_in(3);
	if (the_key < 0)
		nothing();
	else
		protect_with_key(l, from, n, prot, keyed);
}

static bool has_key(const struct lane *l, size_t page)
{
	return l->page[page].key && readable(l, page);
}

/* The code of the fault that an access is, or 0. */
static int code_of(volatile char *p, bool writes)
{
	if (sigsetjmp(landing, 0))
		return fault.si_code;
	guarded = 1;
	if (writes)
		*p = 1;
	else
		(void)*p;
	guarded = 0;
	return 0;
}

/* What the key denies for a while it denies a child that is made meanwhile, too. */
static void op_forbid(void)
{
	struct lane *l = some_lane(MAPPINGS);
	size_t page = some_page(l, has_key);
	bool writes = once_in(2), all = once_in(2);
	if (the_key < 0 || page == LANE_PAGES) {
		nothing();
		return;
	}
	writes = writes && writable(l, page);
	unsigned rights = all || !writes ? PKEY_DISABLE_ACCESS : PKEY_DISABLE_WRITE;
	describe("forbidden %c %zu, rights %u, %s", name_of(l), page, rights, writes ? "writing" : "reading");
	NEED(pkey_set(the_key, rights) == 0);
	pid_t pid = fork();
	int code = code_of(at(l, page), writes), status = 0;
	if (pid == 0)
		_exit(code);
	NEED(pkey_set(the_key, 0) == 0);
	NEED(pid > 0 && waitpid(pid, &status, 0) == pid);
	if (code != SEGV_PKUERR)
		find("an access that a key forbids: code %d", code);
	if (!is(l, page, NOFORK) && (!WIFEXITED(status) || WEXITSTATUS(status) != SEGV_PKUERR))
		find("a child's access that a key forbids: status %x", (unsigned)status);
	look(l, page);
	result(status);
}

/* -- policies -------------------------------------------------------------------------- */

static void op_bind(void)
{
	static const int modes[] = { MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE };
	struct lane *l = some_lane(MAPPINGS);
	size_t n, from = some_range(l, &n);
	int mode = modes[below(4)];
	unsigned flags = once_in(3) ? MPOL_MF_MOVE : 0;
	if (!have_policies) {
		nothing();
		return;
	}
	unsigned long node = 1, nodes = mode == MPOL_DEFAULT ? 0 : 64;
	/* The default may be had across holes. */
	size_t there = count(l, from, n, MAPPED);
	bool may = mode == MPOL_DEFAULT ? there > 0 : there == n;
	describe("mbind %c %zu+%zu mode %d flags %x", name_of(l), from, n, mode, flags);
	long r = syscall(SYS_mbind, at(l, from), n * PAGE, mode, nodes ? &node : NULL, nodes, flags);
	if (!as_wanted("mbind", may ? 0 : EFAULT, r))
		return;
	cut_out(l, from, n);
	for (size_t i = from; i < from + n; i++)
		l->page[i].policy = (unsigned char)mode;
	look_over(l, from, n);
}

/* What the kernel says of a few pages. */
static void op_policy(void)
{
	struct lane *l = some_lane(MAPPINGS);
	describe("get_mempolicy %c", name_of(l));
	for (int k = 0; k < 8; k++) {
		size_t page = below(l->pages);
		if (!have_policies)
			continue;
		int mode = -1;
		unsigned long nodes[16] = { 0 };
		long r = syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, at(l, page), MPOL_F_ADDR);
		bool there = is(l, page, MAPPED);
		if (!as_wanted("get_mempolicy", there ? 0 : EFAULT, r))
			continue;
		if (there && (mode != l->page[page].policy || nodes[0] != (mode != MPOL_DEFAULT)))
			find("policy %d of nodes %lx instead of %d", mode, nodes[0], l->page[page].policy);
		mix((uint64_t)mode);
	}
	result(0);
}

/* -- seals ----------------------------------------------------------------------------- */

#define VAULT_PAGES 1024ul
/* What is sealed stays: after so many only children seal more. */
#define VAULTS 12
#define VAULT_AT(i) ((char *)0x210000000000ul + (size_t)(i) * (16ul << 20))

static int vaults;

/* Where nothing is sealed yet. What is of the old one is nobody's any more. */
static void new_vault(void)
{
	struct lane *l = THE_VAULT;
	for (size_t i = 0; i < l->pages; i++) {
		if (is(l, i, SEALED))
			(void)madvise(at(l, i), PAGE, MADV_DONTNEED);
		else if (is(l, i, MAPPED))
			NEED(munmap(at(l, i), PAGE) == 0);
	}
	gone(l, 0, l->pages);
	/* By a hint: what MAP_FIXED puts somewhere is never shared. */
	char *at = VAULT_AT(vaults++);
	char *p = mmap(at, VAULT_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p == at);
	begin(l, VAULT, p, VAULT_PAGES * PAGE);
	fresh(l, 0, l->pages, PROT_READ | PROT_WRITE, FRESH);
}

static void seal(struct lane *l, size_t from, size_t n)
{
	if (once_in(3) && count(l, from, n, SEALED) == 0)
		protect(l, from, n, PROT_READ);
	describe("mseal %c %zu+%zu", name_of(l), from, n);
	if (once_in(8)) {
		as_wanted("mseal with flags", EINVAL, syscall(SYS_mseal, at(l, from), n * PAGE, 1ul));
		return;
	}
	int wanted = count(l, from, n, MAPPED) == n ? 0 : ENOMEM;
	if (!as_wanted("mseal", wanted, syscall(SYS_mseal, at(l, from), n * PAGE, 0ul)))
		return;
	cut_out(l, from, n);
	for (size_t i = from; i < from + n; i++)
		l->page[i].state |= SEALED;
	look_over(l, from, n);
}

static void map_in_vault(struct lane *l, size_t from, size_t n)
{
	/* Where there is nothing, a hint is enough. */
	bool hint = count(l, from, n, MAPPED) == 0 && once_in(2);
	int prot = some_prot(), flags = some_flags() | (hint ? 0 : MAP_FIXED);
	int wanted = count(l, from, n, SEALED) ? EPERM : 0;
	describe("mmap in the vault %c %zu+%zu prot %d flags %x", name_of(l), from, n, prot, flags);
	char *p = mmap(at(l, from), n * PAGE, prot, flags, -1, 0);
	if (as_wanted("mmap in the vault", wanted, address(p))) {
		NEED(p == at(l, from));
		cut_out(l, from, n);
		fresh(l, from, n, prot, FRESH);
	}
	look_over(l, from, n);
}

static void unmap_in_vault(struct lane *l, size_t from, size_t n)
{
	int wanted = count(l, from, n, SEALED) ? EPERM : 0;
	describe("munmap %c %zu+%zu", name_of(l), from, n);
	if (as_wanted("munmap in the vault", wanted, munmap(at(l, from), n * PAGE))) {
		cut_out(l, from, n);
		gone(l, from, n);
	}
	look_over(l, from, n);
}

/* From what is sealed on, if something is: what comes before it is changed or not, as the
 * kernel's version has it. */
static void protect_in_vault(struct lane *l, size_t from, size_t n)
{
	int prot = some_prot();
	bool keyed = once_in(3) && the_key >= 0;
	if (count(l, from, n, SEALED) == 0) {
		if (keyed)
			protect_with_key(l, from, n, prot, true);
		else
			protect(l, from, n, prot);
		return;
	}
	for (; !is(l, from, SEALED); from++)
		n--;
	describe("mprotect %c %zu+%zu prot %d, sealed", name_of(l), from, n, prot);
	as_wanted("mprotect of what is sealed", EPERM,
		  keyed ? pkey_mprotect(at(l, from), n * PAGE, prot, the_key) : mprotect(at(l, from), n * PAGE, prot));
	look_over(l, from, n);
}

static bool is_sealed(const struct lane *l, size_t page)
{
	return is(l, page, SEALED);
}

/* No piece of what is sealed moves, grows or shrinks; and nothing moves onto it. */
static void remap_in_vault(struct lane *l)
{
	size_t page = some_page(l, is_sealed);
	if (page == LANE_PAGES) {
		nothing();
		return;
	}
	size_t old = run_of_part(l, page, LANE_PAGES), more = about(64);
	int way = (int)below(4);
	struct lane *from = some_lane(SLOT | ZONE);
	size_t source = some_page(from, is_mapped);
	describe("mremap %d %c %zu+%zu, sealed", way, name_of(l), page, old);
	if (way == 0 && old > 1) {
		as_wanted("mremap shrinks what is sealed", EPERM, address(mremap(at(l, page), old * PAGE, PAGE, 0)));
	} else if (way == 1) {
		as_wanted("mremap grows what is sealed", EPERM,
			  address(mremap(at(l, page), old * PAGE, (old + more) * PAGE, MREMAP_MAYMOVE)));
	} else if (way == 2) {
		as_wanted("MREMAP_DONTUNMAP of what is sealed", EPERM,
			  address(mremap(at(l, page), old * PAGE, old * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL)));
	} else if (way == 3 && source < LANE_PAGES) {
		size_t n = run_of_part(from, source, about(l->pages - page));
		as_wanted("mremap onto what is sealed", EPERM,
			  address(mremap(at(from, source), n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(l, page))));
		look_over(from, source, n);
	} else {
		nothing();
	}
	look_over(l, page, old);
}

/* Within one mapping: of several, some are advised before the kernel comes to one that is sealed. */
static void advise_in_vault(struct lane *l)
{
	size_t from = some_page(l, once_in(2) ? is_sealed : is_mapped);
	const struct advice *a = &advices[below(ADVICES)];
	if (from == LANE_PAGES || a->number == MADV_GUARD_INSTALL || a->number == MADV_GUARD_REMOVE) {
		nothing();
		return;
	}
	advise(l, from, about(run_of_part(l, from, LANE_PAGES)), a);
}

static void op_vault(void)
{
	struct lane *l = THE_VAULT;
	if (!have_seals) {
		nothing();
		return;
	}
	size_t from = below(l->pages), n = some_size(), way = below(16);
	bool full = depth == 0 && count(l, 0, l->pages, SEALED) > l->pages / 2;
	if (full && vaults < VAULTS)
		new_vault();
	n = n < l->pages - from ? n : l->pages - from;
	switch (way) {
	case 0: case 1: map_in_vault(l, from, n); break;
	case 2: unmap_in_vault(l, from, n); break;
	case 3: case 4: protect_in_vault(l, from, n); break;
	case 5: case 6:
		if (full && vaults == VAULTS)
			nothing();
		else
			seal(l, from, n < 64 ? n : 1 + n % 64);
		break;
	case 7: case 8: case 9: remap_in_vault(l); break;
	default: advise_in_vault(l); break;
	}
}

static void begin_marks(void)
{
	the_key = pkey_alloc(0, 0);
	have_policies = syscall(SYS_mbind, NULL, 0ul, MPOL_DEFAULT, NULL, 0ul, 0u) == 0;
	have_seals = syscall(SYS_mseal, NULL, 0ul, 0ul) == 0;
	if (have_seals)
		new_vault();
}

#endif
