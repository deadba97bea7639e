/*
 * provenance.h - from what the running program was built, and where it runs.
 *
 * The build leaves two files beside a program (scripts/provenance): PROGRAM.build, a strict INI
 * file, and PROGRAM.build.diff, what the sources had beyond their commit. They become facts:
 *
 *   build  commit tree commit_time author subject dirty compiler flags version type
 *          binary: XXH3-128 of the program's file; problem: why the files do not count;
 *          diff_truncated: how much of the diff is kept; the diff itself is an object
 *   host   name cpu isa cores memory os kernel libc
 *   gpu    where the NVIDIA driver is loaded: count driver name, and uuid when there is one GPU
 *
 * A file that is missing, damaged or hostile makes `dirty` unknown and is no failure: a run does
 * not stop because nobody knows where its program came from. The ledger says so instead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_PROVENANCE_H
#define INVAR_LEDGER_PROVENANCE_H

#include <stddef.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_PROVENANCE_DIFF_BYTES 16777216 /* of a diff; the rest is left out, and said to be */

typedef struct invar_provenance invar_provenance;

/*
 * Looks at build, program and host. `build` is the file that the build wrote, NULL: the running
 * program's own; "": the host alone, of a program that is no file, such as a script. Fails for lack
 * of memory, or when the program's file cannot be read to its end.
 */
invar_status invar_provenance_gather(invar_provenance **out, const char *build) INVAR_MUST_USE;
void invar_provenance_free(invar_provenance *provenance); /* NULL is allowed */

/* What was found. Borrowed until free. */
const invar_ledger_fact *invar_provenance_facts(size_t *count_out,
                                                const invar_provenance *provenance);
const invar_ledger_object *invar_provenance_objects(size_t *count_out,
                                                    const invar_provenance *provenance);

#ifdef __cplusplus
}
#endif
#endif
