# invar.bash - completes command lines of invar in bash; its tables follow, made by the build.
#
# _invar_verb WORDS sets what a verb takes: subs (verbs of its own), words (its first argument),
# options, keys (1: recipe keys are options, too). _invar_value 'WORDS --OPTION' sets what stands
# behind an option: kind (none, number, file, words) and values (the words).
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2207

_invar() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} option=0
    local verb='' first=1 subs='' words='' options='' keys=0 kind='' values='' key_options
    COMPREPLY=()

    # bash makes three words of --option=value
    if [[ $word == = ]]; then
        word='' option=1
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]} option=1
    fi

    _invar_verb ''
    while ((first < COMP_CWORD)) && [[ " $subs " == *" ${COMP_WORDS[first]} "* ]]; do
        if [[ ${COMP_WORDS[first]} == help ]]; then
            verb=help
        else
            verb+=${verb:+ }${COMP_WORDS[first]} subs='' options=''
            _invar_verb "${verb#help }"
        fi
        ((first++))
    done
    if [[ $verb == help* ]]; then
        [[ $verb != help ]] || _invar_verb key
        COMPREPLY=($(compgen -W "$subs ${options//--/}" -- "$word"))
        return
    fi

    if [[ $before == --* && ($option == 1 || $word != -*) ]]; then
        _invar_value "$verb $before"
        [[ $kind || $keys == 0 ]] || _invar_value "key $before"
        case $kind in
        words) COMPREPLY=($(compgen -W "$values" -- "$word")) ;;
        number) compopt +o default +o bashdefault ;;
        esac
        [[ $kind == none || -z $kind ]] || return
    fi
    if [[ $word == -* ]]; then
        key_options=$options
        if ((keys)); then
            _invar_verb key
            key_options+=" $options"
        fi
        COMPREPLY=($(compgen -W "$key_options" -- "$word"))
    elif ((first == COMP_CWORD)); then
        COMPREPLY=($(compgen -W "$subs $words" -- "$word"))
    fi
}
