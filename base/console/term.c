/*
 * term.c - capabilities of a stream's terminal: overwriting, color, width, styles.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/console/term.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/invar_banned.h"

bool invar_term_live(FILE *stream)
{
    const char *term = getenv("TERM");
    int fd = fileno(stream); // -1 if the stream is in memory

    return fd >= 0 && isatty(fd) && term && strcmp(term, "dumb") != 0;
}

bool invar_term_has_color(FILE *stream)
{
    const char *no_color = getenv("NO_COLOR");

    return invar_term_live(stream) && (!no_color || no_color[0] == '\0');
}

int invar_term_width(FILE *stream)
{
    struct winsize size;
    int fd = fileno(stream);

    if (fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

const char *invar_term_escape(bool color, invar_term_style style)
{
    if (!color)
        return "";
    switch (style) {
    case INVAR_TERM_STYLE_PLAIN: return "\x1b[0m";
    case INVAR_TERM_STYLE_BOLD: return "\x1b[1m";
    case INVAR_TERM_STYLE_DIM: return "\x1b[2m";
    case INVAR_TERM_STYLE_RED: return "\x1b[31m";
    case INVAR_TERM_STYLE_GREEN: return "\x1b[32m";
    case INVAR_TERM_STYLE_YELLOW: return "\x1b[33m";
    case INVAR_TERM_STYLE_CYAN: return "\x1b[36m";
    }
    return "";
}
