// Proves: regall.h is C++ as well, and its functions have C's names there.
#include "../include/regall.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <type_traits>

// regall_stats is a function, too: like stat(2), the structure needs its `struct`.
static_assert(std::is_standard_layout<regall_range>::value, "as in C");
static_assert(std::is_trivial<struct regall_stats>::value, "as in C");
static_assert(sizeof(regall_range) == 48 && sizeof(struct regall_stats) == 104, "as in C");

// The bridge's, too; they cross process boundaries in nobody's case but the caller's.
static_assert(sizeof(regall_segment) == 16 && sizeof(regall_process) == 16, "as in C");
static_assert(sizeof(regall_done) == 24 && sizeof(regall_use) == 16, "as in C");
static_assert(std::is_standard_layout<regall_segment>::value && std::is_trivial<regall_use>::value, "as in C");

#define FIND(name) auto name = reinterpret_cast<decltype(&regall_##name)>(dlsym(RTLD_DEFAULT, "regall_" #name))

// Each function of regions, once. With REGALL not 1, none of them does anything.
static bool regions_work()
{
	FIND(active);
	FIND(region_create);
	FIND(region_destroy);
	FIND(region_read);
	FIND(region_write);
	FIND(region_copy);
	FIND(region_fd);
	FIND(region_used);
	FIND(region_uses);
	if (!region_create || !region_destroy || !region_read || !region_write || !region_copy || !region_fd ||
	    !region_used || !region_uses)
		return false;
	static char here[64] = "bytes of a region", there[64];
	auto address = [](const void *p) { return reinterpret_cast<std::uintptr_t>(p); };
	regall_segment all[] = { { address(here), 5 }, { address(here + 5), 12 } }, to = { address(there), 64 };
	regall_segment other = { address(there + 32), 32 };
	std::uint64_t cookie = 0, second = 0;
	int made = region_create(all, 2, REGALL_REGION_READ | REGALL_REGION_WRITE, REGALL_REGION_NOTIFY, &cookie);
	if (!active() || made == -EFAULT) // inert, or nothing is registered
		return made == (active() ? -EFAULT : -ENOSYS) && region_destroy(0) == -EINVAL && region_uses(0) < 0;
	regall_done done{};
	regall_use use{};
	return made == 0 && region_fd() >= 0 && region_read(cookie, 6, &to, 1, &done) == 0 && done.bytes == 11 &&
	       std::strcmp(there, "of a region") == 0 && region_write(cookie, 0, &to, 1, nullptr) == 0 &&
	       region_create(&other, 1, REGALL_REGION_WRITE, 0, &second) == 0 &&
	       region_copy(cookie, 0, second, 0, 11, &done) == 0 && std::memcmp(there + 32, there, 11) == 0 &&
	       region_used(&use, 1) == 1 && use.cookie == cookie && use.uses == 3 && region_uses(cookie) == 3 &&
	       region_destroy(second) == 0 && region_destroy(cookie) == 0 && region_destroy(cookie) == -EINVAL &&
	       region_destroy(0) == -EINVAL;
}

int main()
{
	// Only a name without C++'s decorations is found.
	auto version = reinterpret_cast<decltype(&regall_version)>(dlsym(RTLD_DEFAULT, "regall_version"));
	auto lookup = reinterpret_cast<decltype(&regall_lookup)>(dlsym(RTLD_DEFAULT, "regall_lookup"));
	if (!version || !lookup)
		return version || lookup;
	static char here[64];
	regall_range range{};
	int said = lookup(nullptr, here, sizeof here, &range);
	if (version() != REGALL_VERSION || (said == 0) != (range.end > range.start)) {
		std::printf("version %d, look-up %d\n", version(), said);
		return 1;
	}
	if (!regions_work()) {
		std::printf("regions\n");
		return 1;
	}
	return 0;
}
