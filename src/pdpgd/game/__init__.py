"""The two players of the game, lambda_1 ||r|| + lambda_2 L(x + r), and what they leave behind.

The primal player moves the perturbation, the dual player weighs the norm against the constraint, the incumbent keeps
the best point. None of them knows a model or a norm: they are given gradients and operators.
"""
