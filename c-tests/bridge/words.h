/* The operations on words of peers, which are there if the shim is. */
#ifndef REGALL_WORDS_H
#define REGALL_WORDS_H

#include "../../include/regall.h"

#pragma weak regall_fetch_add32
#pragma weak regall_fetch_add64
#pragma weak regall_compare_swap32
#pragma weak regall_compare_swap64
#pragma weak regall_swap32
#pragma weak regall_swap64
#pragma weak regall_load32
#pragma weak regall_load64
#pragma weak regall_store32
#pragma weak regall_store64

#endif
