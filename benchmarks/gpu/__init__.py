"""What only a machine with a GPU can show: `make gpu OUT=DIRECTORY`, in one command of less than eight minutes.

It runs on the machine's own Python, which must have torch with CUDA, and what the local provider needs of flowlite's
requirements (`machine.REQUIREMENTS`). Other packages are used if they are installed. `--rehearse` runs everything but
CUDA itself on the CPU, beside a real or fake `nvidia-smi`.
"""
