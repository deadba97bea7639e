/*
 * invar_banned.h - identifiers that host code must not use; included last by every .c file.
 *
 * Each of them lets a hidden input (clock, locale, static state, an unstable order) affect a
 * result, or writes without a bound. There is no include guard on purpose: the file is included
 * after all other headers of a .c file and never by a header.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
/* Some C libraries define these as macros, whose poisoning is a warning. */
#ifdef alloca
#undef alloca
#endif
#ifdef sprintf // a macro with clang and FORTIFY
#undef sprintf
#endif

#pragma GCC poison rand time qsort strtok sprintf setlocale localtime gmtime alloca
