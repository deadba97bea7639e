/*
 * module.h - parts of the program that are files of their own, loaded when they are first needed.
 *
 * A module is compiled against what not every machine has, such as CUDA or MPI: one program serves
 * machines with and without. Modules lie beside the program or, where that is PREFIX/bin/invar, in
 * PREFIX/lib/invar; INVAR_MODULES in the environment names another folder. They belong to a program
 * as its own code does: what copies or hashes a program takes them along. Where this code is part
 * of a shared library (libinvar.so), that library takes the place of the program, and what it
 * exports is visible to all that is loaded after its first module.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_PROCESS_MODULE_H
#define INVAR_BASE_PROCESS_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_MODULE_CUDA "invar-cuda.so"
#define INVAR_MODULE_MPI "invar-mpi.so"
#define INVAR_MODULE_NCCL "invar-nccl.so"
#define INVAR_MODULE_HTTP "invar-http.so"
#define INVAR_MODULE_SERVE "invar-serve.so"

/* All that there are; NULL ends the list. */
extern const char *const invar_module_names[];

/* Finds the module of a program in `folder`. Returns false if no module has this name. */
bool invar_module_find(char out[INVAR_PATH_SIZE], const char *folder, const char *name);

/*
 * Like invar_module_find, for a file named after the program, with another ending:
 * "invar.build". Yields the path beside the program if there is no such file.
 */
void invar_module_record(char out[INVAR_PATH_SIZE], const char *program, const char *ending);

/*
 * Finds the module `file` of this program. Returns INVAR_E_UNSUPPORTED if it does not exist; the
 * message names the command that makes or installs it.
 */
invar_status invar_module_path(char out[INVAR_PATH_SIZE], const char *file) INVAR_MUST_USE;

/*
 * Writes which command brings the module `name` to a program in `folder`: one for a build folder,
 * which has a CMakeCache.txt, another one for an installed program. `made` is true if the build of
 * the program makes the module, and false if its library was not found. `size` is the room, > 0.
 */
void invar_module_remedy(char *out, size_t size, const char *folder, const char *name, bool made);

/*
 * Loads a module, which stays loaded, and yields the address that it exports by the name `symbol`.
 * `file` is the name of a module, or a path if it has a slash. If `global` is true, the libraries
 * of the module find its symbols. Returns INVAR_E_UNSUPPORTED if the module does not exist, cannot
 * be loaded, or has no such symbol.
 */
invar_status invar_module_load(const void **out, const char *file, const char *symbol,
                               bool global) INVAR_MUST_USE;

/*
 * The digest of a program's bytes and of its modules'; without a module that of its file. NULL is
 * this program with the modules that it would load.
 */
invar_status invar_module_hash_program(invar_digest *out, const char *program) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
