/*
 * schema.h - JSON Schemas (draft 2020-12) of recipes and of what verbs print with --json.
 *
 * The schema of a verb is a file in this folder or in ledger/, with the name of the verb. Recipes
 * have a schema that is made from the table of keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_SCHEMA_SCHEMA_H
#define INVAR_CLI_SCHEMA_SCHEMA_H

#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The names of all schemas, "train", "ledger-show", "recipe"; NULL behind the last. */
const char *invar_schema_name(int index);

/*
 * Writes the schema of this name; verbs that print the same share one. INVAR_E_INVALID: there is
 * none, and the message names a near one.
 */
invar_status invar_schema_write(FILE *out, const char *name) INVAR_MUST_USE;

/* `invar help --schema [NAME]`: the schema, or the list of them; yields an exit code. */
int invar_schema_help(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
