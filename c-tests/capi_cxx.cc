// Proves: regall.h is C++ as well, and its functions have C's names there.
#include "../include/regall.h"

#include <cstdio>
#include <dlfcn.h>
#include <type_traits>

// regall_stats is a function, too: like stat(2), the structure needs its `struct`.
static_assert(std::is_standard_layout<regall_range>::value, "as in C");
static_assert(std::is_trivial<struct regall_stats>::value, "as in C");
static_assert(sizeof(regall_range) == 48 && sizeof(struct regall_stats) == 104, "as in C");

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
	return 0;
}
