# Sourced by scripts with the most arguments that they know, and the arguments: --help prints the comment at their head, and more
# arguments are an error. Nothing is set up or started before.
case ${2:-} in
-h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"
    exit 0
    ;;
esac
if [ $(($# - 1)) -gt "$1" ]; then
    echo "unknown argument: ${*:$1+2}; scripts/${0##*/} --help prints the usage." >&2
    exit 1
fi
