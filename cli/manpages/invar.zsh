# invar.zsh - completes command lines of invar in zsh; its tables follow, made by the build.
#
# _invar_verb WORDS sets what a verb takes: subs (verbs of its own with what they do), words_ (its
# first argument), specs (options, as _arguments reads them), keys (1: recipe keys are, too).
# SPDX-License-Identifier: Apache-2.0

_invar() {
    local verb='' keys=0 spec
    local -a subs words_ specs names own

    _invar_verb ''
    while ((CURRENT > 2)) && [[ -n ${(M)subs:#${words[2]}:*} ]]; do
        if [[ $words[2] == help ]]; then
            verb=help
        else
            verb+=${verb:+ }$words[2]
            subs=() specs=() keys=0
            _invar_verb "${verb#help }"
        fi
        shift words
        ((CURRENT--))
    done
    if [[ $verb == help* ]]; then
        if [[ $verb == help ]]; then
            _invar_verb key
            names=(${${specs#--}%%=*})
        fi
        _describe verb subs
        compadd -a names
        return
    fi
    if ((CURRENT == 2)) && [[ $PREFIX != -* && $#subs -gt 0 ]]; then
        _describe verb subs
        return
    fi
    if ((keys)); then
        own=(${specs%%[=\[]*})
        names=($specs)
        _invar_verb key
        for spec in $specs; do
            ((${own[(Ie)${spec%%[=\[]*}]})) || names+=($spec)
        done
        specs=($names)
    fi
    (($#words_ == 0)) || specs+=("1:name:($words_)")
    _arguments $specs '*:file:_files'
}
