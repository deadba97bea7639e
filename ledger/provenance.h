/*
 * provenance.h - gathers facts about how the running program was built and where it runs.
 *
 * The build leaves two files beside a program (scripts/provenance): PROGRAM.build, a strict INI
 * file, and PROGRAM.build.diff, the difference between the sources and their commit. They become
 * facts:
 *
 *   build  commit tree commit_time author subject dirty compiler flags version type
 *          binary: XXH3-128 of the program's file; problem: why the two files were not used;
 *          diff_truncated: how much of the diff is kept; the diff itself is an object
 *   host   name cpu isa cores memory os kernel libc
 *   gpu    if the NVIDIA driver is loaded: count driver name, and uuid if there is one GPU
 *
 * A file that is missing, damaged or hostile makes `dirty` unknown and is not a failure: a run must
 * not stop because its program has no record of its build.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_PROVENANCE_H
#define INVAR_LEDGER_PROVENANCE_H

#include <stddef.h>

#include "base/status.h"
#include "ledger/ledger.h"

#define INVAR_PROVENANCE_DIFF_BYTES 16777216 /* maximum size of the diff; the rest is cut off */

typedef struct invar_provenance invar_provenance;

/*
 * Gathers facts about build, program, host and GPUs. `build` is the path of the file that the build
 * wrote. NULL stands for the running program's own; with an empty path only host and GPUs are
 * examined, for a program that has no file of its own, such as a script. The caller frees *out with
 * invar_provenance_free. Fails only for lack of memory, if uname(2) fails, or if the file of the
 * program cannot be read.
 */
invar_status invar_provenance_gather(invar_provenance **out, const char *build) INVAR_MUST_USE;
void invar_provenance_free(invar_provenance *provenance); /* `provenance` may be NULL */

/* Return the facts and objects that were gathered; borrowed until invar_provenance_free. */
const invar_ledger_fact *invar_provenance_facts(size_t *count_out,
                                                const invar_provenance *provenance);
const invar_ledger_object *invar_provenance_objects(size_t *count_out,
                                                    const invar_provenance *provenance);

#endif
