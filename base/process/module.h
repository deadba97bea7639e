/*
 * module.h - loads optional parts of the program, which are shared objects, when they are first
 * needed.
 *
 * A module is compiled against a library that not every machine has, such as CUDA or MPI, so that
 * one program runs on machines with and without it. Modules lie beside the program, or in
 * PREFIX/lib/invar if the program is PREFIX/bin/invar; INVAR_MODULES in the environment names
 * another folder. They belong to the program like its own code: a copy or a hash of a program
 * includes them. If this code is part of a shared library (libinvar.so), that library takes the
 * place of the program, and after its first module was loaded its exports are visible to all
 * libraries that are loaded later.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_PROCESS_MODULE_H
#define INVAR_BASE_PROCESS_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "base/status.h"

#define INVAR_MODULE_CUDA "invar-cuda.so"
#define INVAR_MODULE_MPI "invar-mpi.so"
#define INVAR_MODULE_NCCL "invar-nccl.so"
#define INVAR_MODULE_HTTP "invar-http.so"
#define INVAR_MODULE_SERVE "invar-serve.so"

/* The names of all modules; NULL ends the list. */
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
 * the program makes the module, and false if its library was not found. `size` > 0 is the capacity
 * of `out`.
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
 * *out = the digest of a program and its modules, or of its file alone if it has none. NULL stands
 * for this program and the modules that it would load.
 */
invar_status invar_module_hash_program(invar_digest *out, const char *program) INVAR_MUST_USE;

#endif
