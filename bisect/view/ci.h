/*
 * ci.h - prints CI results as text, JSON, JUnit XML, GitHub annotations and Markdown.
 *
 * Texts of a result may contain any characters; each form escapes them in its own way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_CI_H
#define INVAR_BISECT_VIEW_CI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "bisect/ci/ci.h"

#define INVAR_CI_LINE 1024

/* Formats the verdict as one line, for example "from step 7, point ...". */
void invar_ci_headline(char out[INVAR_CI_LINE], const invar_ci_result *result);

/* Prints further details, each line prefixed by `before`, and the next command. */
void invar_ci_details(FILE *out, const invar_ci_result *result, const char *before);

/* Members of the JSON of a result, for invar_result_schema. */
#define INVAR_CI_PLACE                                                                             \
    "{step int?, point line?, phase line?, layer int?, op line?, kind line?, dtype line?,"         \
    " shape line?, before text, after text, exact bool, different int, equal int,"                 \
    " changes [line?]}?"
#define INVAR_CI_RESULT                                                                            \
    "{case line?, verdict text, golden line?, story line?, varied line?, runs int, chaos int,"     \
    " variations [line], pending bool, seconds real,"                                              \
    " commit line? (of the program that ran; null: it did not, or does not know), dirty line?,"    \
    " compared int, steps int, first int?, chain_was hex32?, chain_is hex32?, loss_was real?,"     \
    " loss_is real?, place " INVAR_CI_PLACE ", ops line?, same_identity bool}"

/* Returns the results as a JSON array that the caller owns, or NULL without memory. */
json_t *invar_ci_json(const invar_ci_result *results, size_t count);

#define INVAR_CI_JUNIT_MARK                                                                        \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"invar ci\" "

/* Writes JUnit XML as GitLab, Jenkins and others read it. It begins with INVAR_CI_JUNIT_MARK. */
void invar_ci_junit(FILE *out, const invar_ci_result *results, size_t count);

/*
 * Writes annotations for GitHub Actions: the first divergence of each case, for at most ten cases.
 */
void invar_ci_annotations(FILE *out, const invar_ci_result *results, size_t count);

/* Writes a Markdown table for the job summary of GitHub Actions. */
void invar_ci_markdown(FILE *out, const invar_ci_result *results, size_t count);

#endif
