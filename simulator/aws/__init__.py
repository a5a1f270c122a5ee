"""An HTTP endpoint for any AWS client on top of moto: Auto Scaling that takes time and fails as AWS does.

`python -m simulator.aws` (or `client.start_process`, or `process.start_in_thread` in a test) serves moto's EC2, SQS,
CloudWatch, SSM, STS, SNS and IAM unchanged, our own Auto Scaling service on moto's EC2 machines, CloudFormation with
groups of that service, faults on demand, and a control endpoint under `/_trimtab/` that `client.CloudControl` speaks
to.
"""
