"""Whether the box's EC2 lets a call through: signatures and IAM policies.

`signature.py` checks that a request is signed with the secret of the box's account. `required_actions.py` says which
action a call needs on which resource, with the tags that it would give, and `policy.py` decides as IAM does. So a
test can give the client the policy that `provider_adapters/aws/policy.py` prints, and sees whether it is enough.

Of the box it imports only `names.py`. Start with `policy.py`.
"""
