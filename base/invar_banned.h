/*
 * invar_banned.h - identifiers that host code must not use; included last by every .c file.
 *
 * Each of them lets something outside the inputs (clock, locale, hidden state, an unstable order)
 * reach a result, or cannot be bounded. There is no include guard on purpose: it belongs after all
 * other headers of a file, never into a header.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
/* Macros in some C libraries; poisoning a macro is a warning. */
#ifdef alloca
#undef alloca
#endif
#ifdef sprintf // with FORTIFY, where the compiler is clang
#undef sprintf
#endif

#pragma GCC poison rand time qsort strtok sprintf setlocale localtime gmtime alloca
