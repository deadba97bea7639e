/*
 * ci.h - what became of the cases, for people, for programs and for the services that run CI.
 *
 * Texts may hold anything: every form makes them safe in its own way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_CI_H
#define INVAR_BISECT_VIEW_CI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "bisect/ci/ci.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CI_LINE 1024

/* The verdict in one line, "changed from step 7 on: point ...". */
void invar_ci_headline(char out[INVAR_CI_LINE], const invar_ci_result *result);

/* What there is to say beyond it, lines that begin with `before`; what to do at the end. */
void invar_ci_details(FILE *out, const invar_ci_result *result, const char *before);

/* NULL: no memory. */
json_t *invar_ci_json(const invar_ci_result *results, size_t count);

#define INVAR_CI_JUNIT_MARK                                                                        \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"invar ci\" "

/* JUnit XML, which begins with that mark, as GitLab, Jenkins and others read it. */
void invar_ci_junit(FILE *out, const invar_ci_result *results, size_t count);

/* Annotations of GitHub Actions: the first divergence of each case, ten at most. */
void invar_ci_annotations(FILE *out, const invar_ci_result *results, size_t count);

/* A table in Markdown, for a GitHub job's summary. */
void invar_ci_markdown(FILE *out, const invar_ci_result *results, size_t count);

#ifdef __cplusplus
}
#endif
#endif
