/*
 * schema.h - JSON Schemas (draft 2020-12) of recipes and of the output of commands with --json.
 *
 * The schema of a command is made from the members of its result, the schema of recipes from the
 * key table.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_SCHEMA_SCHEMA_H
#define INVAR_CLI_SCHEMA_SCHEMA_H

#include <stdio.h>

#include "base/status.h"

/*
 * Returns the name of a schema, such as "train", "ledger-show" or "recipe"; NULL after the last
 * one.
 */
const char *invar_schema_name(int index);

/*
 * Writes the schema of this name; commands with equal output share one. Returns INVAR_E_INVALID for
 * an unknown name, with a suggestion in the message.
 */
invar_status invar_schema_write(FILE *out, const char *name) INVAR_MUST_USE;

/* Runs `invar help --schema [NAME]`: prints a schema, or the list of all. Returns an exit code. */
int invar_schema_help(int argc, char **argv);

#endif
