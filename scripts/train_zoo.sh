#!/usr/bin/env bash
# The commands that trained the shipped nets, in order. On the same machine they give the same bits: the card of each
# net has the seed, the number of threads and the version of torch. A training that was stopped is resumed.
#
#     scripts/train_zoo.sh [NAME ...]      # without names: all; written to trained/
set -euo pipefail
cd "$(dirname "$0")/.."
PDPGD=${PDPGD:-.venv/bin/pdpgd}

NETS=(mnist-plain mnist-linf-at mnist-l2-at cifar10-plain cifar10-linf-at cifar10-l2-at)
MNIST=(--data mnist --architecture mnist-compact --rate 0.004)
CIFAR=(--data cifar10 --architecture cifar10-compact --optimiser sgd --weight-decay 5e-4 --augment crop-flip)
# An adversarial training that begins with the plain net needs half the epochs.
FROM_PLAIN=(--initial trained/cifar10-plain.safetensors --inner fast --rate 0.1 --rate-warmup 0.15)

train() {
    local name=$1
    shift
    "$PDPGD" train --name "$name" --threads 1 "$@"
}

for name in "${@:-${NETS[@]}}"; do
    if [[ -e trained/$name.json ]]; then
        echo "trained/$name.json exists already"
        continue
    fi
    case $name in
        mnist-plain) train "$name" "${MNIST[@]}" --epochs 12 --judge linf:0.1 --judge l2:1 ;;
        mnist-linf-at) train "$name" "${MNIST[@]}" --epochs 10 --inner pgd --inner-steps 8 --threat linf:0.3 --radius-warmup 0.3 ;;
        mnist-l2-at) train "$name" "${MNIST[@]}" --epochs 8 --inner pgd --inner-steps 5 --threat l2:2 --radius-warmup 0.3 ;;
        cifar10-plain) train "$name" "${CIFAR[@]}" --epochs 12 --rate 0.2 --judge linf:2/255 --judge l2:0.25 ;;
        cifar10-linf-at) train "$name" "${CIFAR[@]}" "${FROM_PLAIN[@]}" --epochs 7 --threat linf:8/255 ;;
        cifar10-l2-at) train "$name" "${CIFAR[@]}" "${FROM_PLAIN[@]}" --epochs 7 --threat l2:0.5 ;;
        # Not shipped: trained with PDPGD, at the cost of the PGD trainings above (docs/measurements.md).
        mnist-linf-pdpgd) train "$name" "${MNIST[@]}" --epochs 10 --inner pdpgd --inner-steps 7 --threat linf:0.3 --radius-warmup 0.3 ;;
        mnist-l2-pdpgd) train "$name" "${MNIST[@]}" --epochs 8 --inner pdpgd --inner-steps 4 --threat l2:2 --radius-warmup 0.3 ;;
        # The same with a margin wider than the radius of the evaluation, as in max-margin training.
        mnist-linf-pdpgd-wide) train "$name" "${MNIST[@]}" --epochs 10 --inner pdpgd --inner-steps 7 --threat linf:0.4 --radius-warmup 0.3 --judge linf:0.3 ;;
        *) echo "expected one of ${NETS[*]}, got $name" >&2; exit 2 ;;
    esac
done
