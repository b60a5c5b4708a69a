#!/bin/bash
# Rendered by main.py from experiments.yaml and templates/torch.sh.j2: change those, not this file.
# By hand: `sbatch` it from anywhere, or `bash` it on a machine without Slurm.

#SBATCH --job-name=torch_mnist_1_a100
#SBATCH --partition=big
#SBATCH --account="lab 7"
#SBATCH --constraint=nvlink
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:nvidia_a100:4
#SBATCH --mem=64G
#SBATCH --time=90
#SBATCH --qos=short
#SBATCH --comment="two words #1"

# 90 s before its time limit, or when it is preempted, a job of main.py stops and goes back into the queue; started again,
# it goes on where it was, and its output with it.
#SBATCH --signal=USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/scratch/50%% full/slurm/%x-%j.out"

set -euo pipefail
cd '/home/me/jax vs torch'

set +u  # `module` and `conda activate` read variables that may not be set
module purge
module load cuda/12.4
set -u

# Variables that only PyTorch needs go here. What measurements rely on is set where they start (harness/job.py).

# Slurm 22.05 to 23.02 does not hand --cpus-per-task on from sbatch to srun.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-4}

run=(/opt/torch/bin/python -u torch_runner/run.py --benchmark mnist --use_case 1 --gpu a100 --data sample --quick --force --config '/home/me/my experiments.yaml' --results '/scratch/50% full')

# By this the 8 tasks know each other. srun hands it to all of them, and no other user can read it there.
export RENDEZVOUS_SECRET=$(od -An -N16 -tx8 /dev/urandom | tr -d ' \n')

# By hand, the line above is what runs, with the arguments of this script at its end. main.py gives two of its own,
# `slurm FOLDER` or `local FOLDER`: submitit's worker then starts that same line and leaves in FOLDER what main.py needs
# to follow the job.
# --kill-on-bad-exit=0, whatever slurm.conf says: a rank that dies must not take with it the one that records its death.
srun=(srun --kill-on-bad-exit=0)
if [[ ${1:-} == slurm || ${1:-} == local ]]; then
    export SUBMITIT_EXECUTOR=$1
    run=(/opt/torch/bin/python -u -m submitit.core._submit "$2")
    srun+=(--output="${2//%/%%}/%j_%t_log.out" --error="${2//%/%%}/%j_%t_log.err")
else
    run+=("$@")
fi

# `exec` leaves no shell between the scheduler's signals and the program.
if [[ -n ${SLURM_JOB_ID:-} && ${1:-} != local ]]; then
    exec "${srun[@]}" "${run[@]}"
fi
exec "${run[@]}"
