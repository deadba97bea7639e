/*
 * term.h - capabilities of a stream's terminal: overwriting, color, width, styles.
 *
 * Nothing is cached: every call queries the stream and the environment.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_CONSOLE_TERM_H
#define INVAR_BASE_CONSOLE_TERM_H

#include <stdbool.h>
#include <stdio.h>

/* True if the stream is a terminal on which a line can be overwritten (not TERM=dumb). */
bool invar_term_live(FILE *stream);

/* True if color is wanted: a live terminal, and NO_COLOR (no-color.org) unset or empty. */
bool invar_term_has_color(FILE *stream);

/* Returns the number of columns of the stream's terminal; 80 if it is unknown. */
int invar_term_width(FILE *stream);

typedef enum invar_term_style {
    INVAR_TERM_STYLE_PLAIN, /* ends every other style */
    INVAR_TERM_STYLE_BOLD,
    INVAR_TERM_STYLE_DIM,
    INVAR_TERM_STYLE_RED,
    INVAR_TERM_STYLE_GREEN,
    INVAR_TERM_STYLE_YELLOW,
    INVAR_TERM_STYLE_CYAN
} invar_term_style;

/* Returns the escape sequence that switches to a style; empty if `color` is false. Static. */
const char *invar_term_escape(bool color, invar_term_style style);

#endif
