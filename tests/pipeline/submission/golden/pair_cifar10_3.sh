#!/bin/bash
# Rendered by main.py from experiments.yaml and templates/pair.sh.j2: change those, not this file.
# By hand: `sbatch` it from anywhere, or `bash` it on a machine without Slurm.
#
# Both frameworks in one allocation, in turn: the same GPU, node and neighbours, and a drift that falls on both alike.
# 7 arms; in each, the script of one framework measures one replicate, or screens.

#SBATCH --job-name=pair_cifar10_3
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:1
#SBATCH --time=30

# 90 s before its time limit, or when it is preempted, a job of main.py stops and goes back into the queue; started again,
# it goes on where it was, and its output with it. B: the signal comes to this script, which has become the job by then.
#SBATCH --signal=B:USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/home/me/jax vs torch/results/slurm/%x-%j.out"

set -uo pipefail  # not -e: an arm that fails costs no other

# By hand, these scripts run as they are, each with the arguments of this one. main.py gives three of its own,
# `slurm JAX_FOLDER TORCH_FOLDER`: the folders hold copies of the scripts, made when the job was submitted.
declare -A script=(
    [jax]='/home/me/jax vs torch/slurm_scripts/jax_cifar10_3.sh'
    [torch]='/home/me/jax vs torch/slurm_scripts/torch_cifar10_3.sh'
)
declare -A folder=()
if [[ ${1:-} == slurm ]]; then
    folder=([jax]=$2 [torch]=$3)
fi

run=$(hostname)-$(date -u +%Y%m%dT%H%M%SZ)-$$  # for the records: which arms ran together; main.py's say the Slurm job

# Slurm signals this shell alone, which passes it on to its arm.
set -m  # or an arm in the background would ignore SIGINT
signalled= arm_pid=
for name in INT TERM USR2; do
    trap "signalled=$name; kill -$name \"\$arm_pid\" 2>/dev/null" "$name"
done

run_arm() {  # framework, `screening` or `r0`, position among the arms, arguments of this script
    if [[ -z ${folder[$1]:-} ]]; then
        bash "${script[$1]}" --replicate "${2#r}" --position "$3" --pair "$run" "${@:4}" </dev/null &
    else
        local arm=${folder[$1]}/$2
        local log=$arm/${SLURM_JOB_ID}_0_log
        rm -f "$arm/stopped"
        bash "${folder[$1]}/script.sh" slurm "$arm" </dev/null >>"$log.out" 2>>"$log.err" &
    fi
    arm_pid=$!
    local status
    while true; do  # a signal that is trapped ends `wait`, not the arm
        wait "$arm_pid"
        status=$?
        kill -0 "$arm_pid" 2>/dev/null || return "$status"
    done
}

was_stopped() {  # framework, `screening` or `r0`, exit status: does Slurm take the allocation back, or does somebody end it?
    [[ -e ${folder[$1]:-/nowhere}/$2/stopped ]] && return 0  # the worker has put the job back into the queue
    if [[ -n ${folder[$1]:-} && $signalled == USR2 ]]; then  # which came when there was no worker to take it
        scontrol requeue "$SLURM_JOB_ID"
    fi
    [[ $3 -eq 75 || -n $signalled ]]
}

failed=0
position=0
for arm in torch:screening jax:r0 torch:r0 torch:r1 jax:r1 jax:r2 torch:r2; do
    framework=${arm%:*} turn=${arm#*:}
    echo "$(date -u +%T) pair | arm $position: $framework, $turn"
    run_arm "$framework" "$turn" "$position" "$@"
    status=$?
    if was_stopped "$framework" "$turn" "$status"; then
        echo "$(date -u +%T) pair | stopped; when it is started again, it goes on where it was"
        exit 75
    fi
    if [[ $status -ne 0 ]]; then
        echo "$(date -u +%T) pair | arm $position: $framework, $turn ended with status $status"
        failed=1
    fi
    position=$((position + 1))
done
exit "$failed"
